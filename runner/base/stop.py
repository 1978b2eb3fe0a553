"""Stop on request: signals set a flag only; the trainer looks at it at step boundaries."""

from __future__ import annotations

import os
import signal
import threading
from contextlib import suppress
from types import FrameType, TracebackType
from typing import Any

from runner.base.errors import StoppedOnRequest

_SIGNALS = tuple(getattr(signal, name) for name in ("SIGTERM", "SIGINT", "SIGUSR1") if hasattr(signal, name))
_MAX_BYTES = 4096


class StopRequest:
    """While entered, SIGTERM, SIGINT and SIGUSR1 ask for a stop; a second SIGINT ends the process at once."""

    def __init__(self) -> None:
        self.received: str | None = None
        self._previous: dict[signal.Signals, Any] = {}
        self._bell: _Bell | None = None

    @property
    def is_wanted(self) -> bool:
        """Whether a stop was asked for; known on other threads even while C code keeps the main one busy."""
        return self.received is not None or (self._bell is not None and self._bell.has_rung())

    def __enter__(self) -> StopRequest:
        # Python only lets the main thread install handlers; called from elsewhere, the caller keeps its own.
        if threading.current_thread() is threading.main_thread():
            self._bell = _Bell()
            self._previous = {number: signal.signal(number, self._handle) for number in _SIGNALS}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)
        if self._bell is not None:
            self._bell.close()

    def refuse_to_begin(self) -> None:
        """Heed a request that came before there was anything to save.

        Raises:
            StoppedOnRequest: when there was one.
        """
        if self.received is not None:
            raise StoppedOnRequest(f"stopped on {self.received} before training began; there was nothing to save")

    def refuse_to_go_on(self, left: str) -> None:
        """Heed a request in the middle of what leaves nothing half done.

        Args:
            left: what has been left behind, such as "nothing was written".

        Raises:
            StoppedOnRequest: when there was one.
        """
        if self.received is not None:
            raise StoppedOnRequest(f"stopped on {self.received}; {left}")

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.received is not None and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.received = signal.Signals(number).name


class _Bell:
    """A pipe into which the interpreter writes each signal as it comes; handlers have to wait for the main thread."""

    def __init__(self) -> None:
        self._reader, self._writer = os.pipe()
        for end in (self._reader, self._writer):
            os.set_blocking(end, False)
        self._previous = signal.set_wakeup_fd(self._writer, warn_on_full_buffer=False)
        self._has_rung = self._is_closed = False
        # A signal to a forked loader process is none to this one.
        os.register_at_fork(after_in_child=self._leave)

    def has_rung(self) -> bool:
        """Whether a signal that asks for a stop has come."""
        with suppress(BlockingIOError):  # none has come since
            self._has_rung = self._has_rung or bool(set(os.read(self._reader, _MAX_BYTES)) & set(_SIGNALS))
        return self._has_rung

    def close(self) -> None:
        """Put back what was there before."""
        signal.set_wakeup_fd(self._previous)
        self._is_closed = True
        os.close(self._reader)
        os.close(self._writer)

    def _leave(self) -> None:
        if not self._is_closed:
            signal.set_wakeup_fd(-1)
