"""How an attempt at a run was asked for: a run is begun once and may be resumed any number of times."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from runner.data.splits import Splits


@dataclass(frozen=True, kw_only=True)
class Attempt:
    """One attempt at a run."""

    overrides: tuple[str, ...] = ()
    """What was typed, for the record."""
    command: str = field(default_factory=lambda: shlex.join(sys.orig_argv))
    """The whole command line, for the record."""
    is_resumed: bool = False
    """Whether the run is continued in its folder: from the newest valid checkpoint, or from the start without one."""
    num_earlier: int = 0
    """Attempts that run.json counts already: until it counts one more, this one has changed nothing."""
    notes: tuple[str, ...] = ()
    """What the log should say about a config that was changed for this attempt."""
    may_change_data: bool = False
    """Whether the user wants to continue with other images of the same classes."""
    may_download: bool = True
    """Whether weights that `model.weights` names may be downloaded: those that only a saved config names may not."""
    repeats: str | None = None
    """The folder of the run whose config this one repeats, for the record."""


class Pruner(Protocol):
    """Compares a run with the other trials of its sweep."""

    def decision(self, run_dir: Path, epoch: int) -> str | None:
        """Why the run in this folder ends after so many epochs; None where it continues."""


def _nothing(*_: object) -> None:
    """What a caller has no use for."""


@dataclass(frozen=True, kw_only=True)
class Hooks:
    """What a training calls, handed in by the caller who starts it; it travels to other processes by pickle."""

    write_report: Callable[[Path, Splits], None] = _nothing
    """Called with the run folder and the data once the run has completed or failed."""
    pruner: Pruner | None = None
    """Asked between two epochs of a trial; None where nothing may end the run early."""
    after_job: Callable[[Path], None] = _nothing
    """Called with the run folder when a submitted job ends, however it does."""
