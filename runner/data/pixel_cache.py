"""Decoded images in memory that all processes of a machine share: each is decoded once, by whoever needs it first."""

from __future__ import annotations

import mmap
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from runner.data.memory import available_memory
from runner.data.source import ImageSource, Labels
from runner.data.stored import DecodedImage, Pixels, StoredImage
from runner.errors import DeviceError, InvalidDatasetError

_NUM_PROBES = 64
_PAGE = mmap.ALLOCATIONGRANULARITY
# Of what is free: others need some too.
_USABLE = 0.8
# Sizes are estimated from a few images.
_SPARE = 1.25
_GIB = 2**30


class PixelCache:
    """A file without a name, mapped into memory: how much is used, a row for each image, then pixels.

    Rows hold where an image begins (counted from 1; 0: it is not there), its height and its width. Loader processes
    inherit the map; training processes open the file by its name, which is removed when all have.
    """

    def __init__(self, file: Path, num_images: int, capacity: int) -> None:
        """Open the file, or make it.

        Args:
            file: on this machine, the same for all processes that are to share.
            num_images: of the split.
            capacity: bytes of pixels at most; taken as they are needed.

        Raises:
            OSError: it can't be made, or not so large.
        """
        self._first_byte = -(-(num_images + 1) * 3 * 8 // _PAGE) * _PAGE
        self._capacity = capacity
        self._descriptor = os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        with _locked(self._descriptor):
            os.ftruncate(self._descriptor, self._first_byte + capacity)
            # A page that can't be had must be an error here, not a crash at some store.
            os.posix_fallocate(self._descriptor, 0, self._first_byte)
        content = mmap.mmap(self._descriptor, self._first_byte + capacity)
        self._rows = np.frombuffer(content, np.int64, (num_images + 1) * 3).reshape(num_images + 1, 3)
        self._bytes = np.frombuffer(content, np.uint8, capacity, self._first_byte)
        self._used = self._rows[num_images]  # bytes taken; whether an image found no room

    @property
    def has_run_out(self) -> bool:
        """Whether an image found no room any more."""
        return bool(self._used[1])

    def get(self, image: int) -> Pixels | None:
        """The pixels of this image, not a copy; None where they are not there."""
        start, height, width = self._rows[image].tolist()
        if not start:
            return None
        pixels: Pixels = self._bytes[start - 1 : start - 1 + height * width * 3].reshape(height, width, 3)
        return pixels

    def put(self, image: int, pixels: Pixels) -> None:
        """Keep the pixels of this image, unless there is no room; shape (height, width, 3)."""
        start = self._take(pixels.size)
        if start is None:
            return
        self._bytes[start : start + pixels.size] = pixels.reshape(-1)
        # The lock is also what keeps a processor from showing the row before the pixels.
        with _locked(self._descriptor):
            self._rows[image, 1:] = pixels.shape[:2]
            self._rows[image, 0] = start + 1

    def _take(self, num_bytes: int) -> int | None:
        with _locked(self._descriptor):
            start = int(self._used[0])
            if self._used[1] or start + num_bytes > self._capacity or not self._is_to_be_had(start, num_bytes):
                self._used[1] = 1
                return None
            self._used[0] = start + num_bytes
            return start

    def _is_to_be_had(self, start: int, num_bytes: int) -> bool:
        try:
            os.posix_fallocate(self._descriptor, self._first_byte + start, num_bytes)
        except OSError:
            return False
        return True


@dataclass(frozen=True)
class CachedSource:
    """Another source whose images are decoded once."""

    source: ImageSource
    cache: PixelCache

    @property
    def labels(self) -> Labels:
        """Class index of each image, shape (N,)."""
        return self.source.labels

    def __len__(self) -> int:
        return len(self.source)

    def open(self, image: int) -> StoredImage:
        """All its pixels, from memory where they are there."""
        return DecodedImage(self.load(image))

    def load(self, image: int) -> Pixels:
        """Its pixels, from memory where they are there; not to be written to."""
        pixels = self.cache.get(image)
        if pixels is None:
            pixels = self.source.load(image)
            self.cache.put(image, pixels)
        return pixels

    def describe(self, image: int) -> str:
        """As the other source describes it."""
        return self.source.describe(image)


def cached(
    source: ImageSource, name: str, wait_for_all: Callable[[], object], *, evaluation_bytes: int = 0
) -> CachedSource:
    """Keep the images of a source in memory that the processes of this machine share.

    Args:
        source: of the training split.
        name: that no other run has; the same in all processes of this one.
        wait_for_all: returns when all processes have called it.
        evaluation_bytes: that the processes of this machine will take for the images of evaluation.

    Raises:
        DeviceError: they don't fit into memory or on the disk, or the system can't do it.
    """
    if sys.platform != "linux":
        raise DeviceError("data.cache=memory: only Linux can share memory in this way; use data.cache=none")
    needed = int(_estimated_bytes(source) * _SPARE)
    file = _folder_for(needed, evaluation_bytes) / f"runner-{name}.pixels"
    try:
        cache = PixelCache(file, len(source), needed)
    except OSError as error:
        raise DeviceError(f"data.cache=memory: {file}: {error.strerror}; use data.cache=none") from error
    wait_for_all()
    # From here on the memory is free when the last process ends, however it ends.
    file.unlink(missing_ok=True)
    return CachedSource(source, cache)


def _estimated_bytes(source: ImageSource) -> int:
    """Bytes of all images decoded, by the sizes of a few."""
    sizes = []
    for image in np.linspace(0, len(source) - 1, min(_NUM_PROBES, len(source)), dtype=np.int64).tolist():
        try:
            stored = source.open(image)
        except InvalidDatasetError:
            continue
        sizes.append(stored.height * stored.width * 3)
    return int(np.mean(sizes or [0]) * len(source)) + _PAGE


def _folder_for(needed: int, evaluation_bytes: int) -> Path:
    """A folder in memory, or else one on the disk, whose files the system keeps in memory as far as there is room."""
    memory, shared, temporary = available_memory(), Path("/dev/shm"), Path(tempfile.gettempdir())
    if memory is not None and evaluation_bytes > memory * _USABLE:
        raise DeviceError(
            f"data.cache=memory: the images of evaluation take {evaluation_bytes / _GIB:,.1f} GiB after their "
            f"transforms, and only {memory / _GIB:,.1f} GiB of memory are free; use data.cache=none"
        )
    fits_memory = memory is None or needed + evaluation_bytes < memory * _USABLE
    if fits_memory and shared.is_dir() and needed < shutil.disk_usage(shared).free * _USABLE:
        return shared
    free = shutil.disk_usage(temporary).free
    if needed < free * _USABLE:
        return temporary
    raise DeviceError(
        f"data.cache=memory: the decoded training images need about {needed / _GIB:,.1f} GiB, but there is not so much "
        f"free memory{'' if memory is None else f' ({memory / _GIB:,.1f} GiB)'}, and {temporary} has "
        f"{free / _GIB:,.1f} GiB free; use data.cache=none"
    )


@contextmanager
def _locked(descriptor: int) -> Iterator[None]:
    import fcntl  # noqa: PLC0415 - Windows has none, and never comes here

    fcntl.lockf(descriptor, fcntl.LOCK_EX)
    try:
        yield
    finally:
        fcntl.lockf(descriptor, fcntl.LOCK_UN)
