"""How a process treats its memory while it works, and how it ends."""

from __future__ import annotations

import atexit
import ctypes
import gc
import os
import select
import sys
import threading
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

# From malloc.h; see mallopt(3).
_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3
_NEVER = -1
# The largest that glibc takes; larger blocks go back to the system as soon as they are freed, as before.
_LARGEST_KEPT_BYTES = 32 << 20
# What glibc's own adjusting arrives at once a block of that size has been freed.
_OWN_TRIM_BYTES = 2 * _LARGEST_KEPT_BYTES


NOBODY_READS = 141  # 128 + SIGPIPE, which not every system has
"""The exit code of a process that was ended because nobody read what it printed."""
_STDOUT = 1
# Through these, profilers of GPUs and of memory get into a process; they may write their files at its end.
_OBSERVERS = ("CUDA_INJECTION64_PATH", "LD_PRELOAD")


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


@contextmanager
def collection_paused() -> Iterator[None]:
    """Collect no garbage for a while: for imports and the like, which make many objects and drop next to none.

    Each search walks over what was made so far, which was a fifth of the time that `import torch` took. What was
    dropped meanwhile is found by the first search afterwards.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


@contextmanager
def heap_set_aside() -> Iterator[None]:
    """Let searches pass over all that is there by now: modules and the like, which stay.

    With torch imported a full search takes a quarter of a second, and drawing a picture sets one off. Processes that
    are forked meanwhile go on sharing that memory, which a search would write to. To be used where there is no garbage
    yet: what there is can't be found before the end.
    """
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


def collection_over() -> None:
    """Search for garbage no more: for a process that has done its work, and whose memory the system takes back.

    Python would search all of it several times on its way out, which with torch imported takes a second. As with
    :func:`runner.base.process.leave`, what only such a search would find is not finalized, modules and what they hold
    included; what was registered with `atexit` is still called.
    """
    gc.disable()
    gc.freeze()


def leave(exit_code: int) -> NoReturn:
    """End this process as Python would, but free no objects one by one: with torch imported that takes over a second.

    Threads are waited for, what was registered with `atexit` is called, and what was printed is written, in Python's
    own order. Where somebody watches this process (a debugger, a profiler, an interactive session), Python ends it.

    Args:
        exit_code: of the process; 141 instead of 0 where nobody could read the end of what was printed.
    """
    if is_watched():
        sys.exit(exit_code)
    try:
        # Names without a promise, but the interpreter itself calls both of them by these.
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
    except BaseException:  # a second Ctrl-C, say: told, but the work is done
        traceback.print_exc()
    try:
        for stream in (sys.stdout, sys.stderr):
            if stream is not None and not stream.closed:
                stream.flush()
    except BrokenPipeError:
        exit_code = exit_code or NOBODY_READS
    except OSError:  # the disk is full, say; Python has its own words for it
        sys.exit(exit_code)
    os._exit(exit_code)


def has_lost_its_reader() -> bool:
    """Whether whoever read what this process prints has gone, as `head` does when it has its lines."""
    if not hasattr(select, "poll"):  # Windows
        return False
    output = select.poll()
    output.register(_STDOUT, select.POLLOUT)
    return any(event & (select.POLLERR | select.POLLHUP) for _, event in output.poll(0))


def is_watched() -> bool:
    """Whether a debugger, a profiler or an interactive session looks at this process."""
    monitoring = getattr(sys, "monitoring", None)  # from Python 3.12 on
    has_tools = monitoring is not None and any(monitoring.get_tool(number) for number in range(6))
    is_observed_from_outside = any(name in os.environ for name in _OBSERVERS)
    is_interactive = sys.flags.interactive or sys.flags.inspect
    return bool(has_tools or is_observed_from_outside or sys.gettrace() or sys.getprofile() or is_interactive)
