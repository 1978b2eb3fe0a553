"""Memory allocator, garbage collector and exit of a process."""

from __future__ import annotations

import atexit
import ctypes
import gc
import os
import select
import signal
import sys
import threading
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.util import Finalize
from types import FrameType
from typing import NoReturn

# From malloc.h; see mallopt(3).
_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3
_NEVER = -1
# The largest that glibc takes; larger blocks go back to the system as soon as they are freed, as before.
_LARGEST_KEPT_BYTES = 32 << 20
# The value to which glibc adjusts itself once a block of that size has been freed.
_OWN_TRIM_BYTES = 2 * _LARGEST_KEPT_BYTES

EXIT_BROKEN_PIPE = 141  # 128 + SIGPIPE, which not every system has
"""Exit code of a process whose stdout was closed by its reader, such as `head`."""
_STDOUT = 1
_AFTER_ALL_OTHERS = -1000
# GPU and memory profilers enter a process through these; they may write their files when it exits.
_OBSERVERS = ("CUDA_INJECTION64_PATH", "LD_PRELOAD")


@contextmanager
def freed_memory_kept() -> Iterator[None]:
    """Within the block, let glibc keep freed memory instead of returning it to the system.

    A training step allocates its activations in hundreds of blocks and frees all of them. glibc returns most of that,
    and the system zeroes the pages again in the next step: with ResNet-18 at 64 px and batches of 32 on two cores that
    was 6,900 pages and a ninth of a step (`benchmarks/allocator.py`). The memory that is kept is about the peak use, as
    with the caching allocator of a GPU; it is returned after the block. Forked processes, such as loaders, inherit it.

    Does nothing with another C library, or where the environment configures its allocator.
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
    tunables = os.environ.get("GLIBC_TUNABLES", "")
    return "glibc.malloc" in tunables or any(name.startswith("MALLOC_") for name in os.environ)


@contextmanager
def gc_paused() -> Iterator[None]:
    """Disable the garbage collector within the block: for imports, which create many objects and drop few.

    Collections took a fifth of the time of `import torch`.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


@contextmanager
def gc_frozen() -> Iterator[None]:
    """Within the block, exclude all objects that exist now (modules and the like) from garbage collection.

    With torch imported a full collection takes a quarter of a second, and drawing a picture triggers one. It would also
    write to memory that forked processes share. Garbage that exists at the start is not freed before the end.
    """
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


def die_of_sigterm() -> None:
    """Let SIGTERM end this process from now on, also where it is process 1, as the command of a container is.

    The kernel delivers to process 1 only the signals that it handles: a container that is stopped while it still
    imports would not notice, and be killed in the end.
    """
    if os.getpid() == 1:
        signal.signal(signal.SIGTERM, _die)


def _die(number: int, frame: FrameType | None) -> None:
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)  # ends the processes that were forked from the first one, which inherit this
    os._exit(128 + number)


def exit_without_cleanup(exit_code: int) -> NoReturn:
    """Exit without freeing objects one by one, which with torch imported takes over a second.

    As at a normal exit, threads are joined, `atexit` functions are called and the streams are flushed. With a debugger,
    a profiler or an interactive session it is a normal exit.

    Args:
        exit_code: of the process; 141 instead of 0 where the reader of stdout has closed it.
    """
    if has_observer():
        sys.exit(exit_code)
    try:
        # Private functions, but the interpreter itself calls both of them by these names.
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
    except BaseException:  # such as a second Ctrl-C: the work is done
        traceback.print_exc()
    try:
        for stream in (sys.stdout, sys.stderr):
            if stream is not None and not stream.closed:
                stream.flush()
    except BrokenPipeError:
        exit_code = exit_code or EXIT_BROKEN_PIPE
    except OSError:  # such as a full disk, which Python reports itself
        sys.exit(exit_code)
    os._exit(exit_code)


def exit_without_cleanup_after_success() -> None:
    """Let this process of `multiprocessing` call :func:`exit_without_cleanup` once its target has returned.

    A normal exit would free all objects of torch and triton one by one, and triton's bindings print 60 lines about
    those that it can't free. After an exception of the target the process exits normally, with exit code 1.
    """
    # multiprocessing runs finalizers after the target, while the target's exception, if any, is being handled.
    Finalize(None, _exit_unless_raised, exitpriority=_AFTER_ALL_OTHERS)


def _exit_unless_raised() -> None:
    if sys.exc_info()[0] is None:
        exit_without_cleanup(0)


def is_stdout_closed() -> bool:
    """Whether the reader of this process's stdout has closed it, as `head` does."""
    if not hasattr(select, "poll"):  # Windows
        return False
    output = select.poll()
    output.register(_STDOUT, select.POLLOUT)
    return any(event & (select.POLLERR | select.POLLHUP) for _, event in output.poll(0))


def has_observer() -> bool:
    """Whether a debugger, a profiler or an interactive session is attached to this process."""
    monitoring = getattr(sys, "monitoring", None)  # from Python 3.12 on
    has_tools = monitoring is not None and any(monitoring.get_tool(number) for number in range(6))
    is_observed_from_outside = any(name in os.environ for name in _OBSERVERS)
    is_interactive = sys.flags.interactive or sys.flags.inspect
    return bool(has_tools or is_observed_from_outside or sys.gettrace() or sys.getprofile() or is_interactive)
