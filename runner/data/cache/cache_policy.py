"""Which decoded images are kept: what data.cache comes to for given splits."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Literal

import numpy as np

from runner.base.errors import InvalidDatasetError
from runner.config.schema.data import DataConfig
from runner.data.images.batched import BatchedTransforms, parted
from runner.data.source import ImageSource

_MOST_PREPARED_BYTES_UNASKED = 256 * 2**20
_MOST_DECODED_BYTES_UNASKED = 2**30
_NUM_PROBES = 64
# So few headers tell that a set is far too large, without waiting for a slow file system.
_NUM_FIRST_PROBES = 8
_FAR_TOO_LARGE = 4


@dataclass(frozen=True)
class CachePolicy:
    """data.cache, with `auto` decided."""

    training: Literal["none", "memory", "device"]
    evaluation: bool
    """Whether images of evaluation, after their transforms, are kept between two epochs."""
    is_asked_for: bool
    """Whether the config says so: then it is an error where there is no room."""
    decoded_bytes: int = 0
    """Of all training images, about, where they are kept in memory."""

    def applied_to(self, data: DataConfig) -> DataConfig:
        """The config with this for data.cache; training images that are kept in memory are decoded whole.

        That is so whether or not this machine has room for them: on Linux pixels depend on the config and the images
        alone.
        """
        reduction = {"jpeg_reduction": "none"} if self.training == "memory" else {}
        return data.model_copy(update={"cache": self.training, **reduction})


def decide_cache_policy(data: DataConfig, train: ImageSource, num_evaluation_images: int) -> CachePolicy:
    """What is kept of a training split and of so many images of evaluation.

    Raises:
        DeviceError: the machine can't read training images at this moment.
    """
    if data.cache == "memory":
        decoded = _estimated_bytes(train, _NUM_PROBES)
        return CachePolicy("none" if decoded is None else "memory", True, is_asked_for=True, decoded_bytes=decoded or 0)
    if data.cache != "auto":
        return CachePolicy(data.cache, data.cache != "none", is_asked_for=True)
    is_small = _are_small(data, num_evaluation_images)
    match parted(data.train_transforms):
        case BatchedTransforms(crop=None, horizontal_flip=0, vertical_flip=0) if _are_small(data, len(train)):
            return CachePolicy("device", is_small, is_asked_for=False)
        case _ if sys.platform == "linux" and (decoded := _bytes_worth_keeping(train)) is not None:
            return CachePolicy("memory", is_small, is_asked_for=False, decoded_bytes=decoded)
        case _:
            return CachePolicy("none", is_small, is_asked_for=False)


def _are_small(data: DataConfig, num_images: int) -> bool:
    return num_images * data.image_size**2 * 3 <= _MOST_PREPARED_BYTES_UNASKED


def _bytes_worth_keeping(train: ImageSource) -> int | None:
    roughly = _estimated_bytes(train, _NUM_FIRST_PROBES)
    if roughly is None or roughly > _FAR_TOO_LARGE * _MOST_DECODED_BYTES_UNASKED:
        return None
    decoded = _estimated_bytes(train, _NUM_PROBES)
    return decoded if decoded is not None and decoded <= _MOST_DECODED_BYTES_UNASKED else None


def _estimated_bytes(source: ImageSource, num_probes: int) -> int | None:
    """Bytes of all images decoded, by the headers of so many; None if they are in memory already."""
    sizes = []
    for image in np.linspace(0, len(source) - 1, min(num_probes, len(source)), dtype=np.int64).tolist():
        try:
            size = source.bytes_once_decoded(image)
        except InvalidDatasetError:
            continue
        if size is None:
            return None
        sizes.append(size)
    return int(np.mean(sizes or [0]) * len(source))
