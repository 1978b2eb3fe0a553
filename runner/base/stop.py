"""Stop on request: signals set a flag, which callers poll; and a time limit for calls that may hang."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from types import FrameType, TracebackType
from typing import Any, TypeVar

from runner.base.errors import StoppedOnRequest

_SIGNALS = tuple(getattr(signal, name) for name in ("SIGTERM", "SIGINT", "SIGUSR1") if hasattr(signal, name))
_MAX_BYTES = 4096
_TICK_SECONDS = 0.1
Value = TypeVar("Value")


class StopRequest:
    """Within the block, SIGTERM, SIGINT and SIGUSR1 request a stop; a second SIGINT raises KeyboardInterrupt."""

    def __init__(self) -> None:
        self.received: str | None = None
        self._previous: dict[signal.Signals, Any] = {}
        self._pipe: _SignalPipe | None = None

    @property
    def is_wanted(self) -> bool:
        """Whether a stop was requested; other threads see it even while C code keeps the main thread busy."""
        return self.received is not None or (self._pipe is not None and self._pipe.has_stop_signal())

    def __enter__(self) -> StopRequest:
        # Python lets only the main thread install handlers; on another thread the handlers stay as they are.
        if threading.current_thread() is threading.main_thread():
            self._pipe = _SignalPipe()
            self._previous = {number: signal.signal(number, self._handle) for number in _SIGNALS}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)
        if self._pipe is not None:
            self._pipe.close()

    def raise_if_received(self, state: str = "training had not begun, so there was nothing to save") -> None:
        """Poll for a stop request.

        Args:
            state: for the message: what is on disk, such as "nothing was written".

        Raises:
            StoppedOnRequest: a stop was requested.
        """
        if self.received is not None:
            raise StoppedOnRequest(f"stopped on {self.received}; {state}")

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.received is not None and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.received = signal.Signals(number).name


class _SignalPipe:
    """A pipe to which the interpreter writes each signal at once (set_wakeup_fd); handlers wait for the main thread."""

    def __init__(self) -> None:
        self._reader, self._writer = os.pipe()
        for end in (self._reader, self._writer):
            os.set_blocking(end, False)
        self._previous = signal.set_wakeup_fd(self._writer, warn_on_full_buffer=False)
        self._has_stop_signal = self._is_closed = False
        # A forked loader process must not write its signals to this pipe.
        os.register_at_fork(after_in_child=self._detach)

    def has_stop_signal(self) -> bool:
        """Whether SIGTERM, SIGINT or SIGUSR1 has arrived."""
        with suppress(BlockingIOError):  # the pipe is empty
            found = bool(set(os.read(self._reader, _MAX_BYTES)) & set(_SIGNALS))
            self._has_stop_signal = self._has_stop_signal or found
        return self._has_stop_signal

    def close(self) -> None:
        """Restore the wakeup descriptor that was set before."""
        signal.set_wakeup_fd(self._previous)
        self._is_closed = True
        os.close(self._reader)
        os.close(self._writer)

    def _detach(self) -> None:
        if not self._is_closed:
            signal.set_wakeup_fd(-1)


def run_with_timeout(seconds: float, work: Callable[[], Value]) -> Value:
    """Call a function that may hang, on a daemon thread, which is abandoned after the time limit.

    Args:
        seconds: time limit.
        work: the function.

    Raises:
        TimeoutError: it has not returned.
        Exception: whatever the function raises.
    """
    values: list[Value] = []
    errors: list[BaseException] = []

    def call() -> None:
        try:
            values.append(work())
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=call, name="run_with_timeout", daemon=True)
    thread.start()
    deadline = time.monotonic() + seconds
    while thread.is_alive() and time.monotonic() < deadline:
        # In short waits, so that signal handlers of this thread run in between.
        thread.join(_TICK_SECONDS)
    if errors:
        raise errors[0]
    if not values:
        raise TimeoutError(f"no answer within {seconds:g} seconds")
    return values[0]
