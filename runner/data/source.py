"""Where images come from, as the loader sees it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from runner.config.schema.data import MOST_PIXELS
from runner.data.images.decode import bytes_once_decoded, open_image
from runner.data.images.stored import Pixels, StoredImage
from runner.data.sources.index import FolderIndex, shown

Labels = npt.NDArray[np.int64]


class ImageSource(Protocol):
    """One split of a data set. Loader processes get a copy, so it must pickle and be cheap to share."""

    @property
    def labels(self) -> Labels:
        """Class index of each image, shape (N,)."""

    def __len__(self) -> int:
        """Number of images."""

    def open(self, image: int) -> StoredImage:
        """This image, decoded or not yet.

        Raises:
            InvalidDatasetError: it can't be read, now or ever; says which image and why.
        """

    def load(self, image: int) -> Pixels:
        """The pixels of this image as uint8 RGB, shape (height, width, 3).

        Raises:
            InvalidDatasetError: it can't be read, now or ever; says which image and why.
        """

    def bytes_once_decoded(self, image: int) -> int | None:
        """Bytes of the pixels of this image, told without decoding it; None where they are in memory already.

        Raises:
            InvalidDatasetError: it can't be read.
        """

    def file(self, image: int) -> str | None:
        """Full path of the file of its own that this image has; None, for all images, where they have none."""

    def describe(self, image: int) -> str:
        """How a person would find this image: its path, or its number in a named data set."""


@dataclass(frozen=True)
class FolderSource:
    """Images of a folder of class folders."""

    index: FolderIndex
    labels: Labels
    """Class index of each image, shape (N,): the index's own, or those of the training split for the same names."""
    max_pixels: int = MOST_PIXELS
    """Larger images are not decoded."""

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickled without its labels where they are the index's own, which other processes may share."""
        return _folder_source, (self.index, None if self.labels is self.index.labels else self.labels, self.max_pixels)

    def __len__(self) -> int:
        return len(self.labels)

    def open(self, image: int) -> StoredImage:
        """Open the file; see :func:`runner.data.images.decode.open_image`."""
        return open_image(self.index.path(image), self.max_pixels)

    def load(self, image: int) -> Pixels:
        """Decode the file."""
        return self.open(image).pixels()

    def bytes_once_decoded(self, image: int) -> int:
        """By the header of the file."""
        return bytes_once_decoded(self.index.path(image))

    def file(self, image: int) -> str:
        """As the index has it."""
        return self.index.path(image)

    def describe(self, image: int) -> str:
        """Full path."""
        return shown(self.index.path(image))


def _folder_source(index: FolderIndex, labels: Labels | None, max_pixels: int) -> FolderSource:
    return FolderSource(index, index.labels if labels is None else labels, max_pixels)


@dataclass(frozen=True)
class Subset:
    """Some images of another source, numbered anew from 0."""

    source: ImageSource
    ids: Labels
    """Their numbers in that source, shape (N,)."""
    labels: Labels
    """Their class indices, shape (N,)."""

    def __len__(self) -> int:
        return len(self.ids)

    def open(self, image: int) -> StoredImage:
        """Open it in the other source."""
        return self.source.open(int(self.ids[image]))

    def load(self, image: int) -> Pixels:
        """Load from the other source."""
        return self.source.load(int(self.ids[image]))

    def bytes_once_decoded(self, image: int) -> int | None:
        """As the other source says."""
        return self.source.bytes_once_decoded(int(self.ids[image]))

    def file(self, image: int) -> str | None:
        """As in the other source."""
        return self.source.file(int(self.ids[image]))

    def describe(self, image: int) -> str:
        """As the other source describes it."""
        return self.source.describe(int(self.ids[image]))


@dataclass(frozen=True, kw_only=True)
class Opened:
    """What a kind of source found: its splits as they are, before a missing validation split is made."""

    classes: tuple[str, ...]
    train: ImageSource
    val: ImageSource | None
    test: ImageSource | None
    notes: tuple[str, ...] = ()
    train_groups: Labels | None = None
    """Number of the group of each training image, shape (N,), where there are groups."""
