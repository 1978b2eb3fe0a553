"""The C library's allocator, told to keep what one step has freed for the next."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager

# From malloc.h; see mallopt(3).
_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3
_NEVER = -1
# The largest that glibc takes; larger blocks go back to the system as soon as they are freed, as before.
_LARGEST_KEPT_BYTES = 32 << 20
# What glibc's own adjusting arrives at once a block of that size has been freed.
_OWN_TRIM_BYTES = 2 * _LARGEST_KEPT_BYTES


@contextmanager
def freed_memory_kept() -> Iterator[None]:
    """Keep freed memory in this process for a while instead of handing it back to the system.

    A step asks for the memory of its activations and frees all of it, in hundreds of blocks. glibc hands the larger
    part of that back, and the system zeroes it page by page in the next step: with ResNet-18 at 64 px and batches of
    32 on two cores that was 6,900 pages and a ninth of a step (`benchmarks/allocator.py`). What is kept is about
    what was once in use, as with the caching allocator of a GPU. Afterwards all of it goes back. Processes that are
    forked meanwhile, as those that load images, do the same.

    Does nothing where there is another C library than glibc, or where the environment has settings for its allocator.
    """
    library = _glibc()
    if library is None or _is_set_by_user():
        yield
        return
    library.mallopt(_M_MMAP_THRESHOLD, _LARGEST_KEPT_BYTES)
    library.mallopt(_M_TRIM_THRESHOLD, _NEVER)
    try:
        yield
    finally:
        library.mallopt(_M_TRIM_THRESHOLD, _OWN_TRIM_BYTES)
        library.malloc_trim(0)


def _glibc() -> ctypes.CDLL | None:
    library = ctypes.CDLL(None) if os.name == "posix" else None
    return library if hasattr(library, "gnu_get_libc_version") else None


def _is_set_by_user() -> bool:
    return any(name.startswith("MALLOC_") for name in os.environ) or "glibc.malloc" in os.environ.get(
        "GLIBC_TUNABLES", ""
    )
