"""The interface of a split's images, and the sources that are common to several kinds of data sets."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from runner.config.schema.data import MOST_PIXELS
from runner.data.images.decode import bytes_once_decoded, open_image
from runner.data.images.stored import RGB, InputFormat, StoredImage
from runner.data.sources.index import FolderIndex, path_text

Labels = npt.NDArray[np.int64]


class ImageSource(Protocol):
    """One split of a data set. It must pickle, and be cheap to copy to loader processes."""

    @property
    def labels(self) -> Labels:
        """Class index of each image, shape (N,)."""

    def __len__(self) -> int:
        """Number of images."""

    def open(self, image: int) -> StoredImage:
        """The image, perhaps not decoded yet.

        Raises:
            InvalidDatasetError: it can't be read; names the image and the reason.
        """

    def bytes_once_decoded(self, image: int) -> int | None:
        """Bytes of the decoded pixels, from the header of the file; None where they are in memory already.

        Raises:
            InvalidDatasetError: it can't be read.
        """

    def file(self, image: int) -> str | None:
        """Full path of the image's own file; None, for all images, where they have no files of their own."""

    def describe(self, image: int) -> str:
        """The path of the image, or the name of the data set and its number, for messages."""


@dataclass(frozen=True)
class FolderSource:
    """Images of a folder of class folders."""

    index: FolderIndex
    labels: Labels
    """Class index of each image, shape (N,): those of `index`, or of the training split for the same class names."""
    max_pixels: int = MOST_PIXELS
    """Larger images are not decoded, but raise."""
    form: InputFormat = RGB
    """Channels and bits of the pixels."""

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickled without labels that are the index's own, because other processes may map the index from its file."""
        labels = None if self.labels is self.index.labels else self.labels
        return _folder_source, (self.index, labels, self.max_pixels, self.form)

    def __len__(self) -> int:
        return len(self.labels)

    def open(self, image: int) -> StoredImage:
        """See :func:`runner.data.images.decode.open_image`."""
        return open_image(self.index.path(image), self.max_pixels, self.form)

    def bytes_once_decoded(self, image: int) -> int:
        """See :func:`runner.data.images.decode.bytes_once_decoded`."""
        return bytes_once_decoded(self.index.path(image), self.form)

    def file(self, image: int) -> str:
        """See :meth:`ImageSource.file`."""
        return self.index.path(image)

    def describe(self, image: int) -> str:
        """Full path."""
        return path_text(self.index.path(image))


def _folder_source(index: FolderIndex, labels: Labels | None, max_pixels: int, form: InputFormat) -> FolderSource:
    return FolderSource(index, index.labels if labels is None else labels, max_pixels, form)


@dataclass(frozen=True)
class Subset:
    """Some images of another source, numbered from 0."""

    source: ImageSource
    ids: Labels
    """Their numbers in that source, shape (N,)."""
    labels: Labels
    """Their class indices, shape (N,)."""

    def __len__(self) -> int:
        return len(self.ids)

    def open(self, image: int) -> StoredImage:
        """See :meth:`ImageSource.open`."""
        return self.source.open(int(self.ids[image]))

    def bytes_once_decoded(self, image: int) -> int | None:
        """See :meth:`ImageSource.bytes_once_decoded`."""
        return self.source.bytes_once_decoded(int(self.ids[image]))

    def file(self, image: int) -> str | None:
        """See :meth:`ImageSource.file`."""
        return self.source.file(int(self.ids[image]))

    def describe(self, image: int) -> str:
        """See :meth:`ImageSource.describe`."""
        return self.source.describe(int(self.ids[image]))


@dataclass(frozen=True, kw_only=True)
class Opened:
    """The splits that a data set has, before a missing validation split is made from the training split."""

    classes: tuple[str, ...]
    train: ImageSource
    val: ImageSource | None
    test: ImageSource | None
    notes: tuple[str, ...] = ()
    """Sentences for the log."""
    train_groups: Labels | None = None
    """Number of the group of each training image, shape (N,), where a CSV file names groups."""
