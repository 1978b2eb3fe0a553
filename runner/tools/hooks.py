"""What the tools do for a training that they, a command or Python code starts: its report, its sweep."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from runner.base.console import LOGGER
from runner.base.errors import RunnerError
from runner.config.saved import saved_config
from runner.tools.report import explain_end
from runner.tools.sweep.folder import SweepFolder, epochs_of, is_sweep, load_trial, value_of
from runner.training.attempt import Hooks

if TYPE_CHECKING:
    from runner.config.schema import Config
    from runner.tools.sweep.search.study import Judgement


def training_hooks(config: Config, trial_file: Path | None = None) -> Hooks:
    """What a training calls.

    Args:
        config: of the run.
        trial_file: record of the trial of a sweep, if the run is one.
    """
    is_judged = trial_file is not None and config.sweep.pruner != "none"
    pruner = TrialPruner(trial_file=trial_file) if is_judged and trial_file is not None else None
    return Hooks(write_report=explain_end, pruner=pruner, after_job=refresh_leaderboard)


@contextmanager
def leaderboard_refreshed(run_dir: Path) -> Iterator[None]:
    """Write the leaderboard anew once a run has ended, however it did; nothing where it is no trial of a sweep."""
    try:
        yield
    finally:
        refresh_leaderboard(run_dir)


def refresh_leaderboard(run_dir: Path) -> None:
    """Write the leaderboard of the sweep whose trial lies in this folder; nothing where it is no trial.

    Trials that jobs of SLURM or Hydra's launchers train are not seen by the sweep itself.
    """
    if not is_sweep(run_dir.parent):
        return
    from runner.tools.sweep.leaderboard import refresh  # noqa: PLC0415 - only where there is one

    try:
        refresh(SweepFolder(run_dir.parent))
    except (RunnerError, OSError, ValueError) as error:  # the run itself is well: typed again, the sweep writes it
        LOGGER.warning("the leaderboard can't be written: %s", error)


@dataclass(kw_only=True)
class TrialPruner:
    """Reports what the run folder says of the epochs so far, then asks the pruner."""

    trial_file: Path
    """Record of the trial."""
    _judgement: Judgement | None = field(default=None, init=False, repr=False)

    def decision(self, run_dir: Path, epoch: int) -> str | None:
        """Why the run in this folder ends after so many epochs; None where it goes on.

        An epoch is judged again where a killed run goes on from its end, with the same result: the value comes from
        metrics.jsonl. A trial that can't reach the storage trains on, since that is never wrong, only slower.
        """
        from runner.tools.sweep.search.storage import STORAGE_ERRORS  # noqa: PLC0415 - Optuna, where a policy asks for it

        try:
            judgement = self._judgement or self._open()
            judgement.report({row["epoch"]: self._value(row, judgement) for row in epochs_of(run_dir)[:epoch]})
            return judgement.decision(epoch)
        except STORAGE_ERRORS as error:
            LOGGER.warning("the search can't be reached, so the trial goes on without being judged: %s", error)
            return None

    def _value(self, row: dict[str, float], judgement: Judgement) -> float:
        value = value_of(row, judgement.metric, judgement.direction)
        assert value is not None, "each epoch has each metric"
        return value

    def _open(self) -> Judgement:
        from runner.tools.sweep.search.study import Judgement  # noqa: PLC0415

        trial = load_trial(self.trial_file)
        assert trial.study_number is not None, "a sweep with a policy gives each trial a place in a study"
        config = saved_config(trial.config)
        sweep = config.sweep.with_metric(config.trainer.monitor)
        folder = SweepFolder(self.trial_file.parents[1])
        self._judgement = Judgement(sweep, folder, trial.study_number, max_epochs=config.trainer.epochs)
        return self._judgement
