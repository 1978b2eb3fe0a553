"""The hooks of a training that belong to the tools: its report, the pruner and the leaderboard of its sweep."""

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
from runner.tools.sweep.sweep_folder import SweepFolder, epochs_of, is_sweep, load_trial, value_of
from runner.training.attempt import Hooks

if TYPE_CHECKING:
    from runner.config.schema import Config
    from runner.tools.sweep.search.study import Judgement


def training_hooks(config: Config, trial_file: Path | None = None) -> Hooks:
    """The hooks of a training.

    Args:
        config: of the run.
        trial_file: the record of the trial, if the run is a trial of a sweep.
    """
    has_pruner = trial_file is not None and config.sweep.pruner != "none"
    pruner = TrialPruner(trial_file=trial_file) if has_pruner and trial_file is not None else None
    return Hooks(write_report=explain_end, pruner=pruner, after_job=refresh_leaderboard)


@contextmanager
def leaderboard_refreshed(run_dir: Path) -> Iterator[None]:
    """Refresh the leaderboard after the block, also after an error, if the run is a trial of a sweep."""
    try:
        yield
    finally:
        refresh_leaderboard(run_dir)


def refresh_leaderboard(run_dir: Path) -> None:
    """Write the leaderboard of the sweep that this run folder belongs to; does nothing if it belongs to none.

    The process of the sweep does not notice the end of trials that SLURM or Hydra's launchers start.
    """
    if not is_sweep(run_dir.parent):
        return
    from runner.tools.sweep.leaderboard import refresh  # noqa: PLC0415 - only where there is one

    try:
        refresh(SweepFolder(run_dir.parent))
    except (
        RunnerError,
        OSError,
        ValueError,
    ) as error:  # no reason to fail the run; a resumed sweep writes the leaderboard
        LOGGER.warning("the leaderboard can't be written: %s", error)


@dataclass(kw_only=True)
class TrialPruner:
    """Reports the metrics in the run folder to the sweep's study, and asks its pruner."""

    trial_file: Path
    """The record of the trial."""
    _judgement: Judgement | None = field(default=None, init=False, repr=False)

    def decision(self, run_dir: Path, epoch: int) -> str | None:
        """Why the run in this folder ends after so many epochs; None if it continues.

        A resumed run may ask about an epoch again and gets the same decision, as the values come from metrics.jsonl. If
        the storage can't be reached, the run continues, which costs time but is never wrong.
        """
        from runner.tools.sweep.search.storage import STORAGE_ERRORS  # noqa: PLC0415 - Optuna, where a policy asks for it

        try:
            judgement = self._judgement or self._open()
            judgement.report({row["epoch"]: self._value(row, judgement) for row in epochs_of(run_dir)[:epoch]})
            return judgement.decision(epoch)
        except STORAGE_ERRORS as error:
            LOGGER.warning("the study's storage can't be reached, so the trial continues without the pruner: %s", error)
            return None

    def _value(self, row: dict[str, float], judgement: Judgement) -> float:
        value = value_of(row, judgement.metric, judgement.direction)
        assert value is not None, "each epoch has each metric"
        return value

    def _open(self) -> Judgement:
        from runner.tools.sweep.search.study import Judgement  # noqa: PLC0415

        trial = load_trial(self.trial_file)
        assert trial.study_number is not None, "a sweep with a pruner adds each trial to a study"
        config = saved_config(trial.config)
        sweep = config.sweep.with_metric(config.trainer.monitor)
        folder = SweepFolder(self.trial_file.parents[1])
        self._judgement = Judgement(sweep, folder, trial.study_number, max_epochs=config.trainer.epochs)
        return self._judgement
