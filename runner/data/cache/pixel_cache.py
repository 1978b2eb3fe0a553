"""Caches decoded images in memory that all processes of a machine share (data.cache=memory)."""

from __future__ import annotations

import mmap
import os
import platform
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Lock

import numpy as np

from runner.base.reasons import reason_of
from runner.data.cache.cache_policy import (
    MemoryBudgetError,
    choose_cache_folder,
    leaves_memory_free,
    shared_memory_if_ample,
)
from runner.data.images.stored import RGB, DecodedImage, InputFormat, Pixels, StoredImage
from runner.data.source import ImageSource, Labels

_PAGE = mmap.ALLOCATIONGRANULARITY
# The size is estimated from a few images.
_SPARE = 1.25
_BYTES_BETWEEN_CHECKS = 16 * 2**20
_BOOT = Path("/proc/sys/kernel/random/boot_id")


class PixelCache:
    """A file that is mapped into memory: a row for each image, one for the bytes used, then pixels.

    A row holds the offset of the image (counted from 1; 0 if it is not cached), its height and its width. Loader
    processes inherit the map; training processes open the file by its name, which is removed once all have opened it.
    """

    def __init__(
        self, file: Path, num_images: int, capacity: int, *, form: InputFormat = RGB, is_modest: bool = False
    ) -> None:
        """Open the file, or create it.

        Args:
            file: on this machine, the same in all processes that share the cache.
            num_images: of the split.
            capacity: bytes of pixels at most, the same in all processes; allocated as needed.
            form: channels and bits of all images.
            is_modest: stop growing when :func:`runner.data.cache.cache_policy.leaves_memory_free` says no.

        Raises:
            OSError: the file can't be created, or not of this size.
        """
        self._first_byte = -(-(num_images + 1) * 3 * 8 // _PAGE) * _PAGE
        self._capacity = capacity
        self._form = form
        self._is_modest = is_modest
        # A file lock is held by a process as a whole, and its threads decode in parallel.
        self._threads = Lock()
        self._is_seen = np.zeros(num_images, dtype=bool)
        self._descriptor = os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        # The memory stays allocated while the file is open.
        weakref.finalize(self, os.close, self._descriptor)
        with self._locked():
            os.ftruncate(self._descriptor, self._first_byte + capacity)
            # A page that can't be allocated is an OSError here; at a later store it would be a SIGBUS.
            os.posix_fallocate(self._descriptor, 0, self._first_byte)
        content = mmap.mmap(self._descriptor, self._first_byte + capacity)
        self._rows = np.frombuffer(content, np.int64, (num_images + 1) * 3).reshape(num_images + 1, 3)
        self._bytes = np.frombuffer(content, np.uint8, capacity, self._first_byte)
        self._used = self._rows[num_images]  # bytes used; 1 once an image did not fit

    def get(self, image: int) -> Pixels | None:
        """The cached pixels of this image, not a copy; None if it is not cached."""
        if not self._rows[image, 0]:
            return None
        if not self._is_seen[image]:
            # Another process may have written it. On ARM its row may be visible before its pixels; a lock orders them.
            with self._locked():
                self._is_seen[image] = True
        start, height, width = self._rows[image].tolist()
        num_bytes = height * width * self._form.decoded_bytes
        # Offsets are multiples of the bytes of a value, as all images have the same format.
        values = self._bytes[start - 1 : start - 1 + num_bytes].view(self._form.dtype)
        pixels: Pixels = values.reshape(height, width, self._form.channels)
        return pixels

    def put(self, image: int, pixels: Pixels) -> None:
        """Cache the pixels of this image, shape (height, width, channels), unless they are cached or don't fit."""
        if self._rows[image, 0]:
            return
        start = self._take(pixels.nbytes)
        if start is None:
            return
        self._bytes[start : start + pixels.nbytes] = np.ascontiguousarray(pixels).reshape(-1).view(np.uint8)
        with self._locked():
            self._rows[image, 1:] = pixels.shape[:2]
            self._rows[image, 0] = start + 1

    def _take(self, num_bytes: int) -> int | None:
        with self._locked():
            start = int(self._used[0])
            if self._used[1] or start + num_bytes > self._capacity or not self._allocate(start, num_bytes):
                self._used[1] = 1
                return None
            self._used[0] = start + num_bytes
            return start

    def _allocate(self, start: int, num_bytes: int) -> bool:
        is_time_to_check = start // _BYTES_BETWEEN_CHECKS != (start + num_bytes) // _BYTES_BETWEEN_CHECKS
        try:
            if self._is_modest and is_time_to_check and not leaves_memory_free(self._descriptor):
                return False
            os.posix_fallocate(self._descriptor, self._first_byte + start, num_bytes)
        except OSError:
            return False
        return True

    @contextmanager
    def _locked(self) -> Iterator[None]:
        import fcntl  # noqa: PLC0415 - missing on Windows, where this class is not used

        with self._threads:
            fcntl.lockf(self._descriptor, fcntl.LOCK_EX)
            try:
                yield
            finally:
                fcntl.lockf(self._descriptor, fcntl.LOCK_UN)


@dataclass(frozen=True)
class CachedSource:
    """A source whose images are decoded once, then cached."""

    source: ImageSource
    cache: PixelCache

    @property
    def labels(self) -> Labels:
        """Class index of each image, shape (N,)."""
        return self.source.labels

    def __len__(self) -> int:
        return len(self.source)

    def open(self, image: int) -> StoredImage:
        """The cached image, whose pixels must not be written to, or an image that is cached when it is decoded."""
        pixels = self.cache.get(image)
        if pixels is not None:
            return DecodedImage(pixels)
        return _NotYetCached(self.source.open(image), image, self.cache)

    def bytes_once_decoded(self, image: int) -> None:
        """None, as they are in memory, or will be."""

    def file(self, image: int) -> str | None:
        """See :meth:`ImageSource.file`."""
        return self.source.file(image)

    def describe(self, image: int) -> str:
        """See :meth:`ImageSource.describe`."""
        return self.source.describe(image)


@dataclass(frozen=True)
class _NotYetCached:
    """An image that is cached when it is decoded."""

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
        del reduction  # the next epoch needs another crop of the image
        pixels = self.stored.pixels()
        self.cache.put(self.image, pixels)
        return pixels


def cache_pixels(
    source: ImageSource,
    decoded_bytes: int,
    name: str,
    wait_for_all: Callable[[], object],
    *,
    is_asked_for: bool,
    evaluation_bytes: int = 0,
    form: InputFormat = RGB,
) -> CachedSource:
    """Cache the images of a source in memory that the processes of this machine share.

    Args:
        source: the training split.
        decoded_bytes: estimated size of all decoded images; the same in all processes.
        name: unique to the run; the same in all of its processes.
        wait_for_all: a barrier of all processes, called once.
        is_asked_for: whether the config says data.cache=memory; with auto the cache may take a small part of the free
            memory only.
        evaluation_bytes: bytes that the processes of this machine will take for cached evaluation images.
        form: channels and bits of the images.

    Raises:
        MemoryBudgetError: they don't fit, or this is not Linux.
    """
    needed = int(decoded_bytes * _SPARE) + _PAGE
    file = None
    try:
        folder = choose_cache_folder(needed, evaluation_bytes) if is_asked_for else shared_memory_if_ample(needed)
        # Machines may share the folder, but not their memory; containers of one machine have the same boot id.
        machine = _BOOT.read_text().strip() if _BOOT.is_file() else platform.node()
        file = folder / f"runner-{name}-{machine}.pixels"
        cache = PixelCache(file, len(source), needed, form=form, is_modest=not is_asked_for)
    except OSError as error:
        raise MemoryBudgetError(f"{file}: {reason_of(error)}") from error
    finally:
        try:
            wait_for_all()
        finally:
            if file is not None:
                # Without a name, the memory is freed when the last process ends, even if that is killed.
                file.unlink(missing_ok=True)
    return CachedSource(source, cache)
