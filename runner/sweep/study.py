"""A search: what Optuna proposes, is told, and thinks of a trial between two epochs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import assert_never

from optuna.pruners import NopPruner
from optuna.samplers import RandomSampler
from optuna.trial import FrozenTrial, TrialState
from optuna.trial import Trial as StudyTrial

from runner.errors import ConfigError, Problem
from runner.schema.sweep import SweepConfig
from runner.sweep.axes import Axis, Bell, Between, Choices, as_typed
from runner.sweep.folder import SweepFolder, Trial
from runner.sweep.outcome import Outcome, epochs_of, value_of
from runner.sweep.pruners import build_pruner
from runner.sweep.samplers import SamplerName, SeededSampler
from runner.sweep.storage import open_storage, open_study, study_name

_OWNER = "sweep"  # attribute of a trial in a study that several sweeps share
_FIXED = "fixed_params"  # where Optuna keeps the values of a starting point
_SMALLEST_QUANTILE = 1e-6


class Search:
    """The study of a sweep, as the sweep sees it. Without a sampler it only keeps what a policy compares."""

    def __init__(
        self, sweep: SweepConfig, folder: SweepFolder, axes: Sequence[Axis], sampler: SamplerName | None
    ) -> None:
        self.sweep = sweep
        self.folder = folder
        self.axes = axes
        self.storage = open_storage(sweep, folder)
        self.sampler = SeededSampler(sampler, sweep.seed) if sampler is not None else RandomSampler(sweep.seed)
        self.study = open_study(sweep, folder, self.storage, sampler=self.sampler, pruner=NopPruner())

    @property
    def is_shared(self) -> bool:
        """Whether other sweeps may work on the same study."""
        return self.sweep.storage is not None

    def prepare(self, trials: Sequence[Trial]) -> None:
        """Put the study in order before the first proposal: after a kill there may be trials without a record.

        Raises:
            ConfigError: a starting point that does not fit the space.
        """
        points = starting_points(self.sweep, self.axes)
        recorded = {trial.study_number for trial in trials}
        for known in self.study.get_trials(deepcopy=False):
            is_own = not self.is_shared or known.user_attrs.get(_OWNER) == str(self.folder.path)
            if known.state == TrialState.RUNNING and is_own and known.number not in recorded:
                self.study.tell(known.number, state=TrialState.FAIL)
                if _FIXED in known.system_attrs:
                    self.study.enqueue_trial(known.system_attrs[_FIXED], user_attrs=known.user_attrs)
        known_points = [known.user_attrs.get("point") for known in self.study.get_trials(deepcopy=False)]
        for number, point in enumerate(points):
            if number not in known_points:
                self.study.enqueue_trial(point, user_attrs={"point": number})

    def is_exhausted(self, num_trials: int) -> bool:
        """Whether there are as many trials as were asked for.

        Args:
            num_trials: trials that this sweep has a record of.
        """
        if not self.is_shared:
            return num_trials >= self.sweep.num_trials
        states = (TrialState.RUNNING, TrialState.COMPLETE, TrialState.PRUNED, TrialState.FAIL)
        return len(self.study.get_trials(deepcopy=False, states=states)) >= self.sweep.num_trials

    def propose(self, number: int) -> tuple[int, dict[str, str]]:
        """The next trial.

        Args:
            number: its number in this sweep.

        Returns:
            Its number in the study, and the values that vary as they would be typed.
        """
        trial = self._ask(number)
        return trial.number, proposed_values(trial, self.axes)

    def enter(self, number: int) -> int:
        """Give a trial that was not proposed here a place in the study, for a policy to compare it; returns it."""
        return self._ask(number).number

    def _ask(self, number: int) -> StudyTrial:
        """A new trial of the study."""
        if isinstance(self.sampler, SeededSampler):
            self.sampler.number = None if self.is_shared else number
        trial = self.study.ask()
        trial.set_user_attr(_OWNER, str(self.folder.path))
        return trial

    def tell(self, outcome: Outcome) -> None:
        """Say how a trial ended; again does no harm."""
        number = outcome.trial.study_number
        if number is None:
            return
        known = self._frozen(number)
        if known.state.is_finished():
            return
        if outcome.status == "failed":
            self.study.tell(number, state=TrialState.FAIL)
            return
        if len(self.sweep.metrics) == 1:
            run_dir = self._run_dir(outcome.trial)
            metric, direction = self.sweep.metrics[0], self.sweep.directions[0]
            values = {row["epoch"]: value_of(row, metric, direction) for row in epochs_of(run_dir)}
            self._report(known, {epoch: value for epoch, value in values.items() if value is not None})
        if outcome.status == "pruned":
            self.study.tell(number, state=TrialState.PRUNED)
        elif outcome.status == "completed":
            self.study.tell(number, list(outcome.values or ()))

    def _run_dir(self, trial: Trial) -> Path:
        return self.folder.path / str(trial.number if trial.same_as is None else trial.same_as)

    def _frozen(self, number: int) -> FrozenTrial:
        return self.study.get_trials(deepcopy=False)[number]

    def _report(self, known: FrozenTrial, values: Mapping[int, float]) -> None:
        study_id = self.storage.get_study_id_from_name(self.study.study_name)
        trial_id = self.storage.get_trial_id_from_study_id_trial_number(study_id, known.number)
        for epoch, value in values.items():
            if epoch not in known.intermediate_values:
                self.storage.set_trial_intermediate_value(trial_id, epoch, value)


def starting_points(sweep: SweepConfig, axes: Sequence[Axis]) -> list[dict[str, object]]:
    """The starting points as Optuna knows them.

    Raises:
        ConfigError: one that does not fit the space.
    """
    by_key = {axis.key: axis for axis in axes}
    found = []
    for number, point in enumerate(sweep.starting_points):
        unknown = [key for key in point if key not in by_key]
        if unknown:
            message = f"{unknown[0]!r} does not vary in this sweep; there are {', '.join(by_key)}"
            raise ConfigError([Problem(key=f"sweep.starting_points.{number}", message=message)])
        found.append({key: _parameter(by_key[key], value, number) for key, value in point.items()})
    return found


class Judgement:
    """The study of a sweep, as one of its trials sees it."""

    def __init__(self, sweep: SweepConfig, folder: SweepFolder, number: int, *, max_epochs: int) -> None:
        self.metric = sweep.metrics[0]
        self.direction = sweep.directions[0]
        self._options = sweep.pruning
        self._policy = sweep.pruner
        self._storage = open_storage(sweep, folder)
        self._pruner = build_pruner(sweep, max_epochs)
        sampler = RandomSampler(sweep.seed)
        self._study = open_study(sweep, folder, self._storage, sampler=sampler, pruner=self._pruner)
        study_id = self._storage.get_study_id_from_name(study_name(sweep, folder))
        self._trial_id = self._storage.get_trial_id_from_study_id_trial_number(study_id, number)

    def report(self, values: Mapping[int, float]) -> None:
        """Say the value of each epoch so far."""
        trial = self._storage.get_trial(self._trial_id)
        for epoch, value in values.items():
            if not trial.state.is_finished() and epoch not in trial.intermediate_values:
                self._storage.set_trial_intermediate_value(self._trial_id, epoch, value)

    def verdict(self, epoch: int) -> str | None:
        """Why to end after this epoch; None to go on. The epochs so far have been reported."""
        options = self._options
        if epoch < options.delay_evaluation or epoch % options.evaluation_interval:
            return None
        trial = self._storage.get_trial(self._trial_id)
        if trial.state.is_finished() or not self._pruner.prune(self._study, trial):
            return None
        return f"{self._policy}: {self.metric} = {trial.intermediate_values[epoch]:.4g}"


def proposed_values(trial: StudyTrial, axes: Sequence[Axis]) -> dict[str, str]:
    """What the study proposes for each axis that applies, as it would be typed."""
    chosen: dict[str, str] = {}
    for axis in axes:
        if axis.applies(chosen):
            chosen[axis.key] = _suggested(trial, axis)
    return chosen


def _suggested(trial: StudyTrial, axis: Axis) -> str:
    match axis.values:
        case Choices(values=values):
            return str(trial.suggest_categorical(axis.key, values))
        case Between(low=low, high=high, is_whole=True):
            return str(trial.suggest_int(axis.key, int(low), int(high), log=axis.values.is_log))
        case Between(low=low, high=high):
            return as_typed(axis.values.rounded(trial.suggest_float(axis.key, low, high, log=axis.values.is_log)))
        case Bell():
            # Optuna knows no bell curve: it searches the share of values below.
            return as_typed(axis.values.at(trial.suggest_float(axis.key, _SMALLEST_QUANTILE, 1 - _SMALLEST_QUANTILE)))
        case _:
            assert_never(axis.values)


def _parameter(axis: Axis, value: object, point: int) -> object:
    """A value of the user's as Optuna knows it.

    Raises:
        ConfigError: when it is none of the axis' values.
    """
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    match axis.values:
        case Choices(values=values):
            typed = as_typed(value) if value is None or isinstance(value, bool | int | float | str) else str(value)
            found = [choice for choice in values if choice == typed or _same_number(choice, value)]
            if found:
                return found[0]
            message = f"must be one of {', '.join(values)}"
        case Between(low=low, high=high, is_whole=is_whole):
            if is_number and low <= float(str(value)) <= high:
                return int(float(str(value))) if is_whole else float(str(value))
            message = f"must be a number from {low:g} to {high:g}"
        case Bell():
            if is_number:
                quantile = axis.values.share_below(float(str(value)))
                return min(max(quantile, _SMALLEST_QUANTILE), 1 - _SMALLEST_QUANTILE)
            message = "must be a number"
        case _:
            assert_never(axis.values)
    key = f"sweep.starting_points.{point}.{axis.key}"
    raise ConfigError([Problem(key=key, value=value, has_value=True, message=message)])


def _same_number(typed: str, value: object) -> bool:
    if not isinstance(value, int | float) or isinstance(value, bool):
        return False
    try:
        return float(typed) == value
    except ValueError:
        return False
