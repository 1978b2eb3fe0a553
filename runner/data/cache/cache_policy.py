"""Decides which decoded images are cached (data.cache=auto), and how much memory the cache may take."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from runner.base.errors import InvalidDatasetError
from runner.config.schema.data import DataConfig
from runner.config.schema.transforms import height_and_width
from runner.data.cache.memory import available_memory, format_bytes, free_fraction_of_memory
from runner.data.images.batched import BatchedTransforms, split_transforms
from runner.data.images.stored import InputFormat
from runner.data.source import ImageSource

# Limits with data.cache=auto.
_MOST_PREPARED_BYTES = 256 * 2**20
_MOST_DECODED_BYTES = 2**30
_NUM_PROBES = 64
# A few headers show that a data set is far too large; on a slow file system 64 would take long.
_NUM_FIRST_PROBES = 8
_FAR_TOO_LARGE = 4

_SHARED = Path("/dev/shm")
# Fraction of the free memory that data.cache=memory may use.
_USABLE = 0.8
# The fractions that data.cache=auto may use are smaller: other trials of a sweep, and other users, see the same free
# memory at the same time, and loader processes pass their batches through shared memory.
_USABLE_OF_MEMORY_AUTO = 1 / 8
_USABLE_OF_SHARED_AUTO = 1 / 4
# With data.cache=auto these fractions of all memory stay free.
_MEMORY_LEFT = 1 / 4
_SHARED_LEFT = 1 / 2


@dataclass(frozen=True)
class CachePolicy:
    """data.cache, with `auto` decided."""

    training: Literal["none", "memory", "device"]
    evaluation: bool
    """Whether evaluation images are cached after their transforms."""
    is_asked_for: bool
    """Whether the config names the policy; too little memory is an error then."""
    decoded_bytes: int = 0
    """Estimated bytes of all decoded training images, where these are cached in memory."""

    def applied_to(self, data: DataConfig) -> DataConfig:
        """The config with this policy for data.cache; with `memory`, JPEGs are decoded at full size.

        That holds even if this machine then lacks the memory: on Linux, pixels depend on the config and images only.
        """
        reduction = {"jpeg_reduction": "none"} if self.training == "memory" else {}
        return data.model_copy(update={"cache": self.training, **reduction})


def decide_cache_policy(data: DataConfig, train: ImageSource, num_evaluation_images: int) -> CachePolicy:
    """The cache policy for a training split and a number of evaluation images.

    Raises:
        DeviceError: training images can't be read because of a fault of the machine.
    """
    if data.cache == "memory":
        decoded = _estimated_bytes(train, _NUM_PROBES)
        return CachePolicy("none" if decoded is None else "memory", True, is_asked_for=True, decoded_bytes=decoded or 0)
    if data.cache != "auto":
        return CachePolicy(data.cache, data.cache != "none", is_asked_for=True)
    is_small = _are_small(data, num_evaluation_images, data.eval_image_size)
    match split_transforms(data.train_transforms):
        case BatchedTransforms(crop=None, horizontal_flip=0, vertical_flip=0) if (
            not data.progressive_resizing and _are_small(data, len(train), data.image_size)
        ):
            return CachePolicy("device", is_small, is_asked_for=False)
        case _ if sys.platform == "linux" and (decoded := _bytes_if_small(train)) is not None:
            return CachePolicy("memory", is_small, is_asked_for=False, decoded_bytes=decoded)
        case _:
            return CachePolicy("none", is_small, is_asked_for=False)


def bytes_once_prepared(data: DataConfig, image_size: int | tuple[int, int]) -> int:
    """Bytes of an image after its transforms, which have given it this size in pixels."""
    height, width = height_and_width(image_size)
    return height * width * InputFormat.of(data).prepared_bytes


def _are_small(data: DataConfig, num_images: int, image_size: int | tuple[int, int]) -> bool:
    return num_images * bytes_once_prepared(data, image_size) <= _MOST_PREPARED_BYTES


def _bytes_if_small(train: ImageSource) -> int | None:
    roughly = _estimated_bytes(train, _NUM_FIRST_PROBES)
    if roughly is None or roughly > _FAR_TOO_LARGE * _MOST_DECODED_BYTES:
        return None
    decoded = _estimated_bytes(train, _NUM_PROBES)
    return decoded if decoded is not None and decoded <= _MOST_DECODED_BYTES else None


def _estimated_bytes(source: ImageSource, num_probes: int) -> int | None:
    """Bytes of all decoded images, estimated from the headers of a few; None if they are in memory already."""
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


class MemoryBudgetError(Exception):
    """The reason why images are not cached, as a part of a message."""


def choose_cache_folder(needed: int, evaluation_bytes: int) -> Path:
    """/dev/shm if the images fit there, else the temporary folder on disk, whose files the page cache holds.

    Args:
        needed: bytes of decoded training images.
        evaluation_bytes: bytes that the processes of this machine will take for cached evaluation images.

    Raises:
        MemoryBudgetError: they fit into neither, or this is not Linux.
    """
    _check_linux()
    memory, temporary = available_memory(), Path(tempfile.gettempdir())
    if memory is not None and evaluation_bytes > memory * _USABLE:
        raise MemoryBudgetError(
            f"the evaluation images take {format_bytes(evaluation_bytes)} after their transforms, and only "
            f"{format_bytes(memory)} of memory are free"
        )
    fits_memory = memory is None or needed + evaluation_bytes < memory * _USABLE
    shared = shutil.disk_usage(_SHARED).free if _SHARED.is_dir() else 0
    if fits_memory and needed < shared * _USABLE:
        return _SHARED
    on_disk = shutil.disk_usage(temporary).free
    if needed < on_disk * _USABLE:
        return temporary
    of_memory = "" if memory is None else f"{format_bytes(memory)} of memory, "
    raise MemoryBudgetError(
        f"the decoded training images need about {format_bytes(needed)}; free are {of_memory}{format_bytes(shared)} in "
        f"{_SHARED} and {format_bytes(on_disk)} in {temporary}"
    )


def shared_memory_if_ample(needed: int) -> Path:
    """/dev/shm, if the bytes are a small part of the free memory.

    Raises:
        MemoryBudgetError: they are not, or this is not Linux.
    """
    _check_linux()
    memory = available_memory()
    if memory is not None and needed > memory * _USABLE_OF_MEMORY_AUTO:
        raise MemoryBudgetError(
            f"decoded they take up to {format_bytes(needed)}, more than an eighth of the free memory "
            f"({format_bytes(memory)})"
        )
    shared = shutil.disk_usage(_SHARED).free if _SHARED.is_dir() else 0
    if needed > shared * _USABLE_OF_SHARED_AUTO:
        raise MemoryBudgetError(
            f"decoded they take up to {format_bytes(needed)}, more than a quarter of what is free in {_SHARED} "
            f"({format_bytes(shared)})"
        )
    return _SHARED


def leaves_memory_free(descriptor: int) -> bool:
    """Whether a quarter of the memory, and half of the file system of an open file, are still free."""
    file_system = os.fstatvfs(descriptor)
    share = free_fraction_of_memory()
    return file_system.f_bavail >= file_system.f_blocks * _SHARED_LEFT and (share is None or share >= _MEMORY_LEFT)


def _check_linux() -> None:
    if sys.platform != "linux":
        raise MemoryBudgetError("only Linux can share memory in this way")
