"""Tells a trial, between two epochs, whether the policy of its sweep ends it; asked by its first process."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from runner.base.console import LOGGER
from runner.config.saved import saved_config
from runner.tools.sweep.folder import SweepFolder, load_trial
from runner.tools.sweep.outcome import epochs_of, value_of

if TYPE_CHECKING:
    from runner.tools.sweep.study import Judgement


class TrialReferee:
    """Reports what the run folder says of the epochs so far, then asks the policy."""

    def __init__(self, trial_file: Path, run_dir: Path) -> None:
        """Plain values.

        Args:
            trial_file: record of the trial.
            run_dir: its run folder.
        """
        self.trial_file = trial_file
        self.run_dir = run_dir
        self._judgement: Judgement | None = None

    def verdict(self, epoch: int) -> str | None:
        """Why to end after this many epochs; None to go on.

        An epoch is judged again where a killed run goes on from its end, with the same result: the value comes from
        metrics.jsonl. Whoever can't reach the storage trains on, since that is never wrong, only slower.
        """
        from runner.tools.sweep.storage import STORAGE_ERRORS  # noqa: PLC0415 - Optuna, where a policy asks for it

        try:
            judgement = self._judgement or self._open()
            judgement.report({row["epoch"]: self._value(row, judgement) for row in epochs_of(self.run_dir)[:epoch]})
            return judgement.verdict(epoch)
        except STORAGE_ERRORS as error:
            LOGGER.warning("the search can't be reached, so the trial goes on without being judged: %s", error)
            return None

    def _value(self, row: dict[str, float], judgement: Judgement) -> float:
        value = value_of(row, judgement.metric, judgement.direction)
        assert value is not None, "each epoch has each metric"
        return value

    def _open(self) -> Judgement:
        from runner.tools.sweep.study import Judgement  # noqa: PLC0415

        trial = load_trial(self.trial_file)
        assert trial.study_number is not None, "a sweep with a policy gives each trial a place in a study"
        config = saved_config(trial.config)
        sweep = config.sweep.with_metric(config.trainer.monitor)
        folder = SweepFolder(self.trial_file.parents[1])
        self._judgement = Judgement(sweep, folder, trial.study_number, max_epochs=config.trainer.epochs)
        return self._judgement
