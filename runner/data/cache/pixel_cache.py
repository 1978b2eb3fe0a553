"""Decoded images in memory that all processes of a machine share: each is decoded once, by whoever needs it first."""

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

from runner.data.cache.memory_budget import MemoryBudgetError, folder_unasked, folder_with_room, leaves_enough
from runner.data.images.stored import DecodedImage, Pixels, StoredImage
from runner.data.source import ImageSource, Labels

_PAGE = mmap.ALLOCATIONGRANULARITY
# Sizes are estimated from a few images.
_SPARE = 1.25
_BYTES_BETWEEN_LOOKS = 16 * 2**20
_BOOT = Path("/proc/sys/kernel/random/boot_id")


class PixelCache:
    """A file without a name, mapped into memory: how much is used, a row for each image, then pixels.

    Rows hold where an image begins (counted from 1; 0: it is not there), its height and its width. Loader processes
    inherit the map; training processes open the file by its name, which is removed when all have.
    """

    def __init__(self, file: Path, num_images: int, capacity: int, *, is_modest: bool = False) -> None:
        """Open the file, or make it.

        Args:
            file: on this machine, the same for all processes that are to share.
            num_images: of the split.
            capacity: bytes of pixels at most, the same in all processes; taken as they are needed.
            is_modest: leave others enough; see :func:`runner.data.cache.memory_budget.leaves_enough`.

        Raises:
            OSError: it can't be made, or not so large.
        """
        self._first_byte = -(-(num_images + 1) * 3 * 8 // _PAGE) * _PAGE
        self._capacity = capacity
        self._is_modest = is_modest
        # A lock of a file is held by a whole process, whose threads decode side by side.
        self._threads = Lock()
        self._is_seen = np.zeros(num_images, dtype=bool)
        self._descriptor = os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        # The memory is held as long as the file is open, whatever becomes of the map.
        weakref.finalize(self, os.close, self._descriptor)
        with self._locked():
            os.ftruncate(self._descriptor, self._first_byte + capacity)
            # A page that can't be had must be an error here, not a crash at some store.
            os.posix_fallocate(self._descriptor, 0, self._first_byte)
        content = mmap.mmap(self._descriptor, self._first_byte + capacity)
        self._rows = np.frombuffer(content, np.int64, (num_images + 1) * 3).reshape(num_images + 1, 3)
        self._bytes = np.frombuffer(content, np.uint8, capacity, self._first_byte)
        self._used = self._rows[num_images]  # bytes taken; whether an image found no room

    def get(self, image: int) -> Pixels | None:
        """The pixels of this image, not a copy; None where they are not there."""
        if not self._rows[image, 0]:
            return None
        if not self._is_seen[image]:
            # Another process may have written it. On ARM its row may be seen before its pixels, but not behind a lock.
            with self._locked():
                self._is_seen[image] = True
        start, height, width = self._rows[image].tolist()
        pixels: Pixels = self._bytes[start - 1 : start - 1 + height * width * 3].reshape(height, width, 3)
        return pixels

    def put(self, image: int, pixels: Pixels) -> None:
        """Keep the pixels of this image, unless they are there or there is no room; shape (height, width, 3)."""
        if self._rows[image, 0]:
            return
        start = self._take(pixels.size)
        if start is None:
            return
        self._bytes[start : start + pixels.size] = pixels.reshape(-1)
        with self._locked():
            self._rows[image, 1:] = pixels.shape[:2]
            self._rows[image, 0] = start + 1

    def _take(self, num_bytes: int) -> int | None:
        with self._locked():
            start = int(self._used[0])
            if self._used[1] or start + num_bytes > self._capacity or not self._is_to_be_had(start, num_bytes):
                self._used[1] = 1
                return None
            self._used[0] = start + num_bytes
            return start

    def _is_to_be_had(self, start: int, num_bytes: int) -> bool:
        is_time_to_look = start // _BYTES_BETWEEN_LOOKS != (start + num_bytes) // _BYTES_BETWEEN_LOOKS
        try:
            if self._is_modest and is_time_to_look and not leaves_enough(self._descriptor):
                return False
            os.posix_fallocate(self._descriptor, self._first_byte + start, num_bytes)
        except OSError:
            return False
        return True

    @contextmanager
    def _locked(self) -> Iterator[None]:
        import fcntl  # noqa: PLC0415 - Windows has none, and never comes here

        with self._threads:
            fcntl.lockf(self._descriptor, fcntl.LOCK_EX)
            try:
                yield
            finally:
                fcntl.lockf(self._descriptor, fcntl.LOCK_UN)


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

    def bytes_once_decoded(self, image: int) -> None:
        """They are in memory, or will be."""

    def file(self, image: int) -> str | None:
        """As in the other source."""
        return self.source.file(image)

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
    decoded_bytes: int,
    name: str,
    wait_for_all: Callable[[], object],
    *,
    is_asked_for: bool,
    evaluation_bytes: int = 0,
) -> CachedSource:
    """Keep the images of a source in memory that the processes of this machine share.

    Args:
        source: of the training split.
        decoded_bytes: of all its images, about; the same in all processes.
        name: that no other run has; the same in all processes of this one.
        wait_for_all: returns when all processes have called it; each calls it once.
        is_asked_for: if not, they are kept only where they are a small part of what is free, and as long as they are.
        evaluation_bytes: that the processes of this machine will take for the images of evaluation.

    Raises:
        MemoryBudgetError: they don't fit, or the system can't do it.
    """
    needed = int(decoded_bytes * _SPARE) + _PAGE
    file = None
    try:
        folder = folder_with_room(needed, evaluation_bytes) if is_asked_for else folder_unasked(needed)
        # A folder may be shared by machines, but memory is not.
        file = folder / f"runner-{name}-{_machine()}.pixels"
        cache = PixelCache(file, len(source), needed, is_modest=not is_asked_for)
    except OSError as error:
        raise MemoryBudgetError(f"{file}: {error.strerror}") from error
    finally:
        try:
            wait_for_all()
        finally:
            if file is not None:
                # From here on the memory is free when the last process ends, however it ends.
                file.unlink(missing_ok=True)
    return CachedSource(source, cache)


def _machine() -> str:
    """Of this machine since it was started, containers on it included."""
    return _BOOT.read_text().strip() if _BOOT.is_file() else platform.node()
