"""Requests to stop: how the launcher hears of them, and how its processes do."""

from __future__ import annotations

import _thread
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing import active_children, resource_tracker
from types import FrameType, TracebackType

from runner.base.errors import StoppedOnRequest
from runner.base.stop import StopRequest
from runner.launch.elastic.shared_state import SharedState

_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)


@contextmanager
def requests_forwarded(shared_state: SharedState) -> Iterator[None]:
    """While entered, SIGTERM, SIGINT and SIGUSR1 to this process ask its processes to stop; a second SIGINT ends all.

    The signals are blocked, which processes that are started inherit: one that comes to them while they still import
    torch waits until they can heed it.

    Raises:
        StoppedOnRequest: when asked before any process has been started.
    """
    if threading.current_thread() is not threading.main_thread():
        yield  # Python only lets the main thread handle signals; called from elsewhere, the caller keeps its own.
        return

    def handle(number: int, frame: FrameType | None) -> None:
        if shared_state.stop_signal is not None and number == signal.SIGINT:
            raise KeyboardInterrupt
        shared_state.ask_to_stop(number)
        if not active_children():
            raise StoppedOnRequest(f"stopped on {signal.Signals(number).name} before training began")

    _start_tracker()
    before = {number: signal.signal(number, handle) for number in _SIGNALS}
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    with _fetching(lambda number, sender: _thread.interrupt_main(signal.Signals(number))):
        try:
            yield
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
            for number, handler in before.items():
                signal.signal(number, handler)


def _start_tracker() -> None:
    """Start Python's tracker of shared memory and semaphores, which removes what processes that are killed leave.

    It unblocks signals when it starts; so it starts before they are blocked. It outlives this process, and would count
    what it removes after the error that the user is to read last.
    """
    given = os.environ.get("PYTHONWARNINGS")
    os.environ["PYTHONWARNINGS"] = ",".join([*([given] if given else []), "ignore:resource_tracker"])
    try:
        resource_tracker.ensure_running()
    finally:
        if given is None:
            del os.environ["PYTHONWARNINGS"]
        else:
            os.environ["PYTHONWARNINGS"] = given


class ForwardedStop(StopRequest):
    """In a process that the launcher has started: requests to the launcher and to this process itself.

    A SIGTERM of the launcher is none: by it the elastic agent ends the processes that are left when one has failed.
    """

    def __init__(self, shared_state: SharedState) -> None:
        super().__init__()
        self._board = shared_state

    @property
    def received(self) -> str | None:
        """Name of the signal that asked for a stop."""
        return self._own or self._board.stop_signal

    @received.setter
    def received(self, name: str | None) -> None:
        self._own = name

    def __enter__(self) -> StopRequest:
        signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
        _start_fetching(self._heed, threading.Event())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Signals are heeded until the process has ended: one that is done waits for its launcher, who may end it."""

    def _heed(self, number: int, sender: int) -> None:
        if number == signal.SIGTERM and sender == self._board.launcher_pid:
            os._exit(128 + number)
        self._own = signal.Signals(number).name


@contextmanager
def _fetching(heed: Callable[[int, int], object]) -> Iterator[None]:
    """Fetch blocked signals on a thread of their own: a handler in Python is not told who sent them."""
    is_over = threading.Event()
    thread = _start_fetching(heed, is_over)
    try:
        yield
    finally:
        is_over.set()
        signal.pthread_kill(_ident(thread), signal.SIGUSR1)
        thread.join()


def _start_fetching(heed: Callable[[int, int], object], is_over: threading.Event) -> threading.Thread:
    def fetch() -> None:
        while True:
            number, sender = _next_signal()
            if is_over.is_set():
                return
            heed(number, sender)

    thread = threading.Thread(target=fetch, name="signals", daemon=True)
    thread.start()
    return thread


def _next_signal() -> tuple[int, int]:
    if hasattr(signal, "sigwaitinfo"):
        info = signal.sigwaitinfo(_SIGNALS)
        return info.si_signo, info.si_pid
    return signal.sigwait(_SIGNALS), 0  # macOS does not say who


def _ident(thread: threading.Thread) -> int:
    assert thread.ident is not None, "it has been started"
    return thread.ident
