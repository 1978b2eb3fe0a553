"""Watches one process: does it get on, and does whoever started it still live."""

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
# A thread of Python can't act while C code holds the interpreter; faulthandler, which needs none, does so later.
_GRACE_SECONDS = 15.0


class Watchdog:
    """Ends a process that stalls or that has lost its parent."""

    def __init__(self, *, parent: int, stall_seconds: float | None, on_stall: Callable[[float], None]) -> None:
        """Plain values.

        Args:
            parent: process without which this one shall not live.
            stall_seconds: longest time between two calls of :meth:`beat`; None for as long as it likes.
            on_stall: called with the seconds without one, on another thread; the process ends after it.
        """
        self.parent = parent
        self.stall_seconds = stall_seconds
        self.on_stall = on_stall
        self._last_heartbeat = time.monotonic()
        self._armed_at = 0.0
        self._is_over = threading.Event()

    def heartbeat(self) -> None:
        """Say that the process gets on."""
        self._last_heartbeat = time.monotonic()
        if self.stall_seconds is not None and self._last_heartbeat - self._armed_at > 1:
            self._armed_at = self._last_heartbeat
            faulthandler.dump_traceback_later(self.stall_seconds + _GRACE_SECONDS, exit=True, file=_STDERR)

    @contextmanager
    def running(self) -> Iterator[None]:
        """Watch until the end of the block."""
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


def die_with(parent: int) -> None:
    """End this process when its parent ends, however that ends, even before any thread of ours could notice."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # it ended before we asked
        os._exit(128 + signal.SIGKILL)
