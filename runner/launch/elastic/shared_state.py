"""What the launcher and the processes that it has started tell each other: a little memory that they share."""

from __future__ import annotations

import multiprocessing
import os
import signal
from multiprocessing.context import SpawnContext
from pathlib import Path
from typing import Any

_MAX_PATH_BYTES = 4096
_FINALLY = 2


class SharedState:
    """Shared by the launcher of a machine and its processes; handed to these when they start.

    Signals can't do this alone: the elastic agent ends processes by SIGTERM, which from anybody else is a request to
    save and stop.
    """

    def __init__(self, num_processes: int) -> None:
        context: SpawnContext = multiprocessing.get_context("spawn")
        self.launcher_pid = os.getpid()
        # Without locks: each place has one writer at a time, and a writer that is killed would keep a lock forever.
        self._stop: Any = context.RawValue("i", 0)
        self._pids: Any = context.RawArray("q", num_processes)
        self._failed: Any = context.RawArray("b", num_processes)
        self._folder: Any = context.RawArray("c", _MAX_PATH_BYTES)

    def ask_to_stop(self, number: int) -> None:
        """Ask all processes to save and stop, because of this signal."""
        self._stop.value = number

    @property
    def stop_signal(self) -> str | None:
        """Name of the signal by which the launcher was asked to stop."""
        return signal.Signals(self._stop.value).name if self._stop.value else None

    def enter(self, local_rank: int) -> None:
        """Say that a process has begun to live."""
        self._pids[local_rank] = os.getpid()

    def fail(self, local_rank: int, *, is_final: bool = False) -> None:
        """Say that a process is about to end with an error, and whether the next attempt would too."""
        self._failed[local_rank] = _FINALLY if is_final else 1

    def forget(self) -> None:
        """Begin anew; for the launcher, between two attempts, when no process of its own lives."""
        for local_rank in range(len(self._pids)):
            self._failed[local_rank] = self._pids[local_rank] = 0

    @property
    def has_failed(self) -> bool:
        """Whether any process has said that it fails."""
        return any(self._failed)

    @property
    def has_failed_finally(self) -> bool:
        """Whether any process has said that it fails, and would again."""
        return _FINALLY in self._failed

    @property
    def pids(self) -> tuple[int, ...]:
        """The processes by local rank; 0 for one that has not begun to live."""
        return tuple(self._pids)

    def set_folder(self, folder: Path) -> None:
        """Say where the logs of this machine's processes are."""
        self._folder.value = os.fsencode(folder)[: _MAX_PATH_BYTES - 1]

    @property
    def folder(self) -> Path | None:
        """Where the logs of this machine's processes are; None until they have agreed on it."""
        return Path(os.fsdecode(self._folder.value)) if self._folder.value else None
