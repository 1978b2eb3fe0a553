"""The end of a process, without the clearing up of memory that the system is about to take back anyway."""

from __future__ import annotations

import atexit
import os
import select
import sys
import threading
import traceback
from typing import NoReturn

NOBODY_READS = 141  # 128 + SIGPIPE, which not every system has
"""The exit code of a process that was ended because nobody read what it printed."""
_STDOUT = 1
# Through these, profilers of GPUs and of memory get into a process; they may write their files at its end.
_OBSERVERS = ("CUDA_INJECTION64_PATH", "LD_PRELOAD")


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
