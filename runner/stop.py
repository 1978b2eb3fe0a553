"""Stop on request: signals set a flag only; the trainer looks at it at step boundaries."""

from __future__ import annotations

import signal
import threading
from types import FrameType, TracebackType
from typing import Any

from runner.errors import StoppedOnRequest

_SIGNALS = tuple(getattr(signal, name) for name in ("SIGTERM", "SIGINT", "SIGUSR1") if hasattr(signal, name))


class StopRequest:
    """While entered, SIGTERM, SIGINT and SIGUSR1 ask for a stop; a second SIGINT ends the process at once."""

    def __init__(self) -> None:
        self.received: str | None = None
        self._previous: dict[signal.Signals, Any] = {}

    def __enter__(self) -> StopRequest:
        # Python only lets the main thread install handlers; called from elsewhere, the caller keeps its own.
        if threading.current_thread() is threading.main_thread():
            self._previous = {number: signal.signal(number, self._handle) for number in _SIGNALS}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

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
