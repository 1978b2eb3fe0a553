"""How an attempt at a run was asked for: a run is begun once and may be resumed any number of times."""

from __future__ import annotations

import shlex
import sys
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from runner.base.allocator import freed_memory_kept
from runner.base.garbage import collection_paused, heap_set_aside
from runner.run.run_folder import read_record
from runner.tools import report

if TYPE_CHECKING:
    from runner.base.stop import StopRequest
    from runner.config.schema import Config
    from runner.data.splits import Splits
    from runner.dist.collectives import DistContext
    from runner.training.train import RunResult


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
    may_download: bool = True
    """Whether weights that `model.weights` names may be downloaded: those that only a saved config names may not."""
    trial_file: Path | None = None
    """Record of the trial of a sweep whose policy may end this run early; None where none may."""
    repeats: str | None = None
    """The folder of the run whose config this one repeats, for the record."""

    @property
    def if_cut(self) -> str:
        """What stands when it was ended by force, and how to go on."""
        return "The checkpoints so far stand: resume goes on from the newest"

    def carry_out(
        self,
        config: Config,
        folder: Path,
        splits: Splits,
        *,
        dist: DistContext | None = None,
        stop: StopRequest | None = None,
    ) -> RunResult:
        """Train; see :func:`runner.training.train.train`."""
        is_first = "runner.training.train" not in sys.modules  # an earlier training in this process has left garbage
        with collection_paused():
            from runner.training.train import train  # noqa: PLC0415 - torch is imported only once config and data are good

        with heap_set_aside() if is_first else nullcontext(), freed_memory_kept():
            return train(config, folder, splits, self, dist=dist, stop=stop)

    def explain_failure(self, folder: Path, splits: Splits) -> None:
        """Write the report of a run that this attempt has begun or gone on with, where this machine has its folder."""
        if (folder / "run.json").is_file() and read_record(folder)["attempts"] > self.num_earlier:
            report.explain_end(folder, splits)

    def continued(self) -> Attempt:
        """The attempt that goes on in the folder where this one had begun."""
        return replace(self, is_resumed=True)
