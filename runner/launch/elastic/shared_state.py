"""What the launcher and the processes that it starts share: a little memory, and requests to stop."""

from __future__ import annotations

import _thread
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing import active_children, resource_tracker
from multiprocessing.context import SpawnContext
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any

from runner.base.errors import StoppedOnRequest
from runner.base.stop import StopRequest

_MAX_PATH_BYTES = 4096
_FINALLY = 2
_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)


class SharedState:
    """Shared memory of a machine's launcher and its processes, which get it when they start.

    Signals alone would be ambiguous: the elastic agent ends processes by SIGTERM, which otherwise is a request to save
    and stop.
    """

    def __init__(self, num_processes: int) -> None:
        context: SpawnContext = multiprocessing.get_context("spawn")
        self.launcher_pid = os.getpid()
        # Without locks, which a killed process would never release; each value has one writer at a time.
        self._stop: Any = context.RawValue("i", 0)
        self._pids: Any = context.RawArray("q", num_processes)
        self._failed: Any = context.RawArray("b", num_processes)
        self._folder: Any = context.RawArray("c", _MAX_PATH_BYTES)

    def request_stop(self, number: int) -> None:
        """Ask all processes to save and stop because of this signal."""
        self._stop.value = number

    @property
    def stop_signal(self) -> str | None:
        """Name of the signal by which the launcher was asked to stop."""
        return signal.Signals(self._stop.value).name if self._stop.value else None

    def set_pid(self, local_rank: int) -> None:
        """Register this process."""
        self._pids[local_rank] = os.getpid()

    def set_failed(self, local_rank: int, *, is_final: bool = False) -> None:
        """Register that a process is about to end with an error, and whether a restart would fail in the same way."""
        self._failed[local_rank] = _FINALLY if is_final else 1

    def reset(self) -> None:
        """Clear processes and failures; for the launcher, between two attempts."""
        for local_rank in range(len(self._pids)):
            self._failed[local_rank] = self._pids[local_rank] = 0

    @property
    def any_failed(self) -> bool:
        """Whether a process has failed."""
        return any(self._failed)

    @property
    def has_final_failure(self) -> bool:
        """Whether a process has failed with an error that a restart would repeat."""
        return _FINALLY in self._failed

    @property
    def pids(self) -> tuple[int, ...]:
        """The process ids by local rank; 0 for a process that has not started yet."""
        return tuple(self._pids)

    def set_folder(self, folder: Path) -> None:
        """Set the folder that has the logs of this machine's processes."""
        self._folder.value = os.fsencode(folder)[: _MAX_PATH_BYTES - 1]

    @property
    def folder(self) -> Path | None:
        """The folder that has the logs of this machine's processes; None until they have agreed on it."""
        return Path(os.fsdecode(self._folder.value)) if self._folder.value else None


@contextmanager
def forwarded_stop_signals(shared_state: SharedState) -> Iterator[None]:
    """In the block, SIGTERM, SIGINT and SIGUSR1 to the launcher ask its processes to stop; a second SIGINT ends all.

    The signals are blocked, which new processes inherit: a signal that arrives while they still import torch stays
    pending until they can handle it.

    Raises:
        StoppedOnRequest: on a signal before any process was started.
    """
    if threading.current_thread() is not threading.main_thread():
        yield  # Python handles signals in the main thread only; on another thread, the caller's handlers stay
        return

    def handle(number: int, frame: FrameType | None) -> None:
        if shared_state.stop_signal is not None and number == signal.SIGINT:
            raise KeyboardInterrupt
        shared_state.request_stop(number)
        if not active_children():
            raise StoppedOnRequest(f"stopped on {signal.Signals(number).name} before training began")

    _start_tracker()
    before = {number: signal.signal(number, handle) for number in _SIGNALS}
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    is_over = threading.Event()
    thread = _start_waiting_for_signals(lambda number, _: _thread.interrupt_main(signal.Signals(number)), is_over)
    try:
        yield
    finally:
        try:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
            for number, handler in before.items():
                signal.signal(number, handler)
        finally:
            is_over.set()
            assert thread.ident is not None, "it has been started"
            signal.pthread_kill(thread.ident, signal.SIGUSR1)
            thread.join()


def _start_tracker() -> None:
    """Start Python's tracker of shared memory and semaphores, which removes those of killed processes.

    It starts before signals are blocked, since it unblocks them. It outlives this process; its warnings are ignored, as
    they would come after the error message.
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
    """Requests to stop in a process that the launcher started: those to the launcher, and signals to the process.

    A SIGTERM from the launcher is none: the elastic agent ends the other processes with it after a failure.
    """

    def __init__(self, shared_state: SharedState) -> None:
        super().__init__()
        self._shared_state = shared_state

    @property
    def received(self) -> str | None:
        """Name of the signal that asked for a stop."""
        return self._own or self._shared_state.stop_signal

    @received.setter
    def received(self, name: str | None) -> None:
        self._own = name

    def __enter__(self) -> StopRequest:
        signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
        _start_waiting_for_signals(self._handle_signal, threading.Event())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Keep handling signals: a process that is done waits for the launcher, which may end it."""

    def _handle_signal(self, number: int, sender: int) -> None:
        if number == signal.SIGTERM and sender == self._shared_state.launcher_pid:
            os._exit(128 + number)
        self._own = signal.Signals(number).name


def _start_waiting_for_signals(handle: Callable[[int, int], object], is_over: threading.Event) -> threading.Thread:
    """Wait for blocked signals on a thread, which learns the sender's process id; handlers in Python do not."""

    def wait() -> None:
        while True:
            if hasattr(signal, "sigwaitinfo"):
                info = signal.sigwaitinfo(_SIGNALS)
                number, sender = info.si_signo, info.si_pid
            else:
                number, sender = signal.sigwait(_SIGNALS), 0  # macOS does not tell the sender
            if is_over.is_set():
                return
            handle(number, sender)

    thread = threading.Thread(target=wait, name="signals", daemon=True)
    thread.start()
    return thread
