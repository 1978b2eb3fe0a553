"""Ends a process that makes no progress, or whose parent has died."""

from __future__ import annotations

import ctypes
import faulthandler
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_STDERR = 2
_PR_SET_PDEATHSIG = 1
_TICK_SECONDS = 0.5
# While C code holds the GIL, no Python thread runs; faulthandler, which needs no GIL, acts this much later.
_GRACE_SECONDS = 15.0


class Watchdog:
    """A thread that ends this process when heartbeats stop or the parent dies."""

    def __init__(self, *, parent: int, stall_seconds: float | None, on_stall: Callable[[float], None]) -> None:
        """Does not start the thread; see :meth:`running`.

        Args:
            parent: ID of the parent process.
            stall_seconds: longest time between two calls of :meth:`heartbeat`; None for no limit.
            on_stall: called with the seconds since the last heartbeat, on the watchdog's thread, before the exit.
        """
        self.parent = parent
        self.stall_seconds = stall_seconds
        self.on_stall = on_stall
        self._last_heartbeat = time.monotonic()
        self._armed_at = 0.0
        self._is_over = threading.Event()

    def heartbeat(self) -> None:
        """Report progress."""
        self._last_heartbeat = time.monotonic()
        if self.stall_seconds is not None and self._last_heartbeat - self._armed_at > 1:
            self._armed_at = self._last_heartbeat
            faulthandler.dump_traceback_later(self.stall_seconds + _GRACE_SECONDS, exit=True, file=_STDERR)

    @contextmanager
    def running(self) -> Iterator[None]:
        """Run the watchdog within the block."""
        self.heartbeat()
        thread = threading.Thread(target=self._watch, name="watch", daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._is_over.set()
            faulthandler.cancel_dump_traceback_later()

    def _watch(self) -> None:
        while not self._is_over.wait(_TICK_SECONDS):
            if os.getppid() != self.parent:
                os._exit(128 + signal.SIGKILL)
            silence = time.monotonic() - self._last_heartbeat
            if self.stall_seconds is not None and silence > self.stall_seconds:
                faulthandler.dump_traceback(_STDERR, all_threads=True)
                try:
                    self.on_stall(silence)
                finally:
                    os._exit(1)


def die_with_parent(parent: int) -> None:
    """Have the kernel kill this process when its parent dies (Linux), even while no Python thread can run."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # it died before prctl was called
        os._exit(128 + signal.SIGKILL)
