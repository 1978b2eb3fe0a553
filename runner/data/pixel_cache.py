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
from threading import Lock

import numpy as np

from runner.data.memory import available_memory
from runner.data.source import ImageSource, Labels
from runner.data.stored import DecodedImage, Pixels, StoredImage
from runner.errors import DeviceError, InvalidDatasetError

_PAGE = mmap.ALLOCATIONGRANULARITY
# Of what is free: others need some too.
_USABLE = 0.8
# The same where nobody asked for it: eight trials of a sweep may start at once.
_USABLE_UNASKED = 1 / 8
# Sizes are estimated from a few images.
_SPARE = 1.25
_GIB = 2**30
# A lock of a file is held by a whole process, whose threads decode side by side.
_THREADS = Lock()


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
        """All its pixels, from memory where they are there; or else what decodes it and keeps them."""
        pixels = self.cache.get(image)
        if pixels is not None:
            return DecodedImage(pixels)
        return _NotYetKept(self.source.open(image), image, self.cache)

    def load(self, image: int) -> Pixels:
        """Its pixels, from memory where they are there; not to be written to."""
        return self.open(image).pixels()

    def bytes_once_decoded(self, image: int) -> int | None:
        """As the other source says."""
        return self.source.bytes_once_decoded(image)

    def describe(self, image: int) -> str:
        """As the other source describes it."""
        return self.source.describe(image)


@dataclass(frozen=True)
class _NotYetKept:
    """An image that is kept once somebody has its pixels."""

    stored: StoredImage
    image: int
    cache: PixelCache

    @property
    def height(self) -> int:
        return self.stored.height

    @property
    def width(self) -> int:
        return self.stored.width

    def pixels(self, reduction: int = 1) -> Pixels:
        del reduction  # in the next epoch another crop is cut out
        pixels = self.stored.pixels()
        self.cache.put(self.image, pixels)
        return pixels


def cached(
    source: ImageSource,
    name: str,
    wait_for_all: Callable[[], object],
    *,
    evaluation_bytes: int = 0,
    say_why_not: Callable[[str], object] | None = None,
) -> ImageSource:
    """Keep the images of a source in memory that the processes of this machine share, unless they are in memory.

    Args:
        source: of the training split.
        name: that no other run has; the same in all processes of this one.
        wait_for_all: returns when all processes have called it; each calls it once.
        evaluation_bytes: that the processes of this machine will take for the images of evaluation.
        say_why_not: given where nobody asked for it. Is then called with the reason in place of an error, and also
            where they take more than an eighth of the free memory.

    Raises:
        DeviceError: they don't fit into memory or on the disk, or the system can't do it.
    """
    decoded = estimated_bytes(source)
    if decoded is None:
        return source
    needed = int(decoded * _SPARE) + _PAGE
    file, cache = None, None
    try:
        if say_why_not is not None:
            _refuse_large_share(needed)
        file = _folder_for(needed, evaluation_bytes) / f"runner-{name}.pixels"
        cache = _made(file, len(source), needed)
    except DeviceError as error:
        if say_why_not is None:
            raise
        say_why_not(str(error))
    wait_for_all()
    if file is not None:
        # From here on the memory is free when the last process ends, however it ends.
        file.unlink(missing_ok=True)
    return source if cache is None else CachedSource(source, cache)


def estimated_bytes(source: ImageSource, num_probes: int = 64) -> int | None:
    """Bytes of all images decoded, by the headers of a few; None if they are in memory already.

    Raises:
        DeviceError: the machine can't read them at this moment.
    """
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


def _made(file: Path, num_images: int, capacity: int) -> PixelCache:
    if sys.platform != "linux":
        raise DeviceError("data.cache=memory: only Linux can share memory in this way; use data.cache=none")
    try:
        return PixelCache(file, num_images, capacity)
    except OSError as error:
        raise DeviceError(f"data.cache=memory: {file}: {error.strerror}; use data.cache=none") from error


def _refuse_large_share(needed: int) -> None:
    memory = available_memory()
    if memory is not None and needed > memory * _USABLE_UNASKED:
        raise DeviceError(
            f"decoded they take up to {needed / _GIB:,.1f} GiB, more than an eighth of the free memory "
            f"({memory / _GIB:,.1f} GiB); data.cache=memory keeps them all the same"
        )


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

    with _THREADS:
        fcntl.lockf(descriptor, fcntl.LOCK_EX)
        try:
            yield
        finally:
            fcntl.lockf(descriptor, fcntl.LOCK_UN)
