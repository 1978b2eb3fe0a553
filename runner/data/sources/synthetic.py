"""Opens `data=synthetic`: generated images in memory, for benchmarks of everything but loading."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from runner.base.keyed_random import random_words
from runner.config.schema.data import SyntheticData
from runner.config.schema.transforms import height_and_width
from runner.data.images.stored import DecodedImage, Pixels, StoredImage
from runner.data.source import Labels, Opened

_POOL_SIZE = 64
_PATCHES_PER_SIDE = 8


@dataclass(frozen=True)
class SyntheticSource:
    """A small pool of pictures, repeated; each always has the same label, so that a model can learn them."""

    pool: npt.NDArray[Any]
    """Shape (pool size, height, width, channels)."""
    labels: Labels
    """Class index of each image, shape (N,)."""

    def __len__(self) -> int:
        return len(self.labels)

    def open(self, image: int) -> StoredImage:
        """Image i is picture i mod pool size; not a copy."""
        return DecodedImage(self.pool[image % len(self.pool)])

    def bytes_once_decoded(self, image: int) -> None:
        """None, as they are in memory."""

    def file(self, image: int) -> None:
        """None."""

    def describe(self, image: int) -> str:
        """The numbers of the image and of its picture."""
        return f"synthetic image {image} (picture {image % len(self.pool)})"


def open_synthetic(data: SyntheticData, seed: int) -> Opened:
    """Training and validation split of data.num_train and data.num_val images, made from the same pool.

    Picture p is an 8 × 8 chequerboard of random colours and belongs to class p mod data.num_classes. The pool has 64
    pictures, so at most 64 classes occur; the model still has data.num_classes outputs.
    """
    pool = np.stack([_picture(data, seed, number) for number in range(_POOL_SIZE)])
    train, val = (
        SyntheticSource(pool, np.arange(num_images, dtype=np.int64) % _POOL_SIZE % data.num_classes)
        for num_images in (data.num_train, data.num_val)
    )
    classes = tuple(str(number) for number in range(data.num_classes))
    return Opened(classes=classes, train=train, val=val, test=None)


def _picture(data: SyntheticData, seed: int, number: int) -> Pixels:
    num_values = _PATCHES_PER_SIDE * _PATCHES_PER_SIDE * data.channels
    words = random_words(num_values, seed, "synthetic", number)
    colours: Pixels = words.astype(np.uint8) if data.bit_depth == 8 else words.astype(np.uint16)
    patches = colours.reshape(_PATCHES_PER_SIDE, _PATCHES_PER_SIDE, data.channels)
    row_of, column_of = (
        np.arange(length) * _PATCHES_PER_SIDE // length for length in height_and_width(data.image_size)
    )
    pixels: Pixels = patches[row_of][:, column_of]
    return pixels
