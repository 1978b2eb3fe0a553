"""How an attempt at a run was asked for: a run is begun once and may be resumed any number of times."""

from __future__ import annotations

import shlex
import sys
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True, kw_only=True)
class Attempt:
    """One attempt at a run."""

    overrides: tuple[str, ...] = ()
    """What was typed, for the record."""
    command: str = field(default_factory=lambda: shlex.join(sys.orig_argv))
    """The whole command line, for the record."""
    is_resumed: bool = False
    """Whether the run goes on in its folder: from the newest valid checkpoint, or from the start without one."""
    num_earlier: int = 0
    """Attempts that run.json counts already: until it counts one more, this one has changed nothing."""
    notes: tuple[str, ...] = ()
    """What the log should say about a config that was changed for this attempt."""
    may_change_data: bool = False
    """Whether the user wants to go on with other images of the same classes."""
    trial_file: Path | None = None
    """Record of the trial of a sweep whose policy may end this run early; None where none may."""
