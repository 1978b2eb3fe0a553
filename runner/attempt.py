"""How an attempt at a run was asked for: a run is begun once and may be resumed any number of times."""

from __future__ import annotations

import shlex
import sys
from dataclasses import dataclass, field


@dataclass(frozen=True, kw_only=True)
class Attempt:
    """One attempt at a run."""

    overrides: tuple[str, ...] = ()
    """What was typed, for the record."""
    command: str = field(default_factory=lambda: shlex.join(sys.orig_argv))
    """The whole command line, for the record."""
    is_resumed: bool = False
    """Whether the run goes on in its folder: from the newest valid checkpoint, or from the start without one."""
    notes: tuple[str, ...] = ()
    """What the log should say about a config that was changed for this attempt."""
    may_change_data: bool = False
    """Whether the user wants to go on with other images of the same classes."""
    repeats: str | None = None
    """The folder of the run whose config this one repeats, for the record."""
