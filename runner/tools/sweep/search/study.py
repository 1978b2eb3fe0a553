"""The Optuna study of a sweep: proposals and results, and the decisions of its pruner."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import optuna
from optuna.pruners import NopPruner
from optuna.samplers import RandomSampler
from optuna.storages import InMemoryStorage
from optuna.trial import FrozenTrial, TrialState, create_trial
from optuna.trial import Trial as StudyTrial

from runner.config.schema.sweep import SweepConfig
from runner.tools.sweep.axes import Axis
from runner.tools.sweep.search.parameters import (
    known_parameters,
    proposed_values,
    refuse_other_space,
    starting_points,
)
from runner.tools.sweep.search.storage import open_storage, open_study, study_name
from runner.tools.sweep.search.strategies import SamplerName, SeededSampler, build_pruner
from runner.tools.sweep.sweep_folder import SweepFolder, Trial, TrialOutcome, epochs_of, value_of

_OWNER = "sweep"  # attribute of a trial in a study that several sweeps share
_FIXED = "fixed_params"  # where Optuna keeps the values of a starting point


def first_proposals(
    sweep: SweepConfig, axes: Sequence[Axis], sampler: SamplerName, num_proposals: int
) -> list[dict[str, str]]:
    """The first proposals of a search, while it has no results; writes nothing.

    Raises:
        ConfigError: a starting point does not fit the space.
    """
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    seeded = SeededSampler(sampler, sweep.seed)
    study = optuna.create_study(storage=InMemoryStorage(), directions=list(sweep.directions), sampler=seeded)
    for point in starting_points(sweep, axes):
        study.enqueue_trial(point)
    return [proposed_values(study.ask(), axes) for _ in range(num_proposals)]


class Search:
    """The study, as the sweep uses it. Without a sampler it only holds the results that a pruner compares."""

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
        """Whether other sweeps may use the same study."""
        return self.sweep.storage is not None

    def prepare(self, trials: Sequence[Trial]) -> None:
        """Make study and records agree before the first proposal: a kill may come between writing the two.

        A running trial of the study without a record is failed, and its starting point enqueued again; a recorded trial
        that the study has lost is added again; starting points that are not in the study are enqueued.

        Raises:
            ConfigError: a starting point does not fit the space, or the space does not fit the recorded trials.
        """
        points = starting_points(self.sweep, self.axes)
        for known in self.study.get_trials(deepcopy=False):
            refuse_other_space(known.distributions, self.axes)
        recorded = {trial.study_number for trial in trials}
        for known in self.study.get_trials(deepcopy=False):
            is_own = not self.is_shared or known.user_attrs.get(_OWNER) == str(self.folder.path)
            if known.state == TrialState.RUNNING and is_own and known.number not in recorded:
                self.study.tell(known.number, state=TrialState.FAIL)
                if _FIXED in known.system_attrs:
                    self.study.enqueue_trial(known.system_attrs[_FIXED], user_attrs=known.user_attrs)
        for trial in trials:
            if trial.study_number is not None and trial.study_number >= len(self.study.get_trials(deepcopy=False)):
                self._enter_again(trial)
        known_points = [known.user_attrs.get("point") for known in self.study.get_trials(deepcopy=False)]
        for number, point in enumerate(points):
            if number not in known_points:
                self.study.enqueue_trial(point, user_attrs={"point": number})

    def is_exhausted(self, num_trials: int) -> bool:
        """Whether there are `sweep.num_trials` trials.

        Args:
            num_trials: recorded trials of this sweep.
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
        """Add a trial of a grid to the study, for a pruner to compare it; returns its number in the study."""
        return self._ask(number).number

    def _enter_again(self, trial: Trial) -> None:
        """Add a trial that the storage has lost; its result is reported again later."""
        parameters, distributions = known_parameters(trial.values, self.axes)
        known = create_trial(
            state=TrialState.RUNNING,
            params=parameters,
            distributions=distributions,
            user_attrs={_OWNER: str(self.folder.path)},
        )
        study_id = self.storage.get_study_id_from_name(self.study.study_name)
        trial_id = self.storage.create_new_trial(study_id, template_trial=known)
        trial.study_number = self.storage.get_trial_number_from_id(trial_id)
        self.folder.save(trial)

    def _ask(self, number: int) -> StudyTrial:
        if isinstance(self.sampler, SeededSampler):
            self.sampler.number = None if self.is_shared else number
        trial = self.study.ask()
        trial.set_user_attr(_OWNER, str(self.folder.path))
        return trial

    def tell(self, outcome: TrialOutcome) -> None:
        """Tell how a trial ended; a second call does nothing."""
        number = outcome.trial.study_number
        if number is None:
            return
        known = self.study.get_trials(deepcopy=False)[number]
        if known.state.is_finished():
            return
        if outcome.status == "failed" or (outcome.status == "completed" and outcome.values is None):
            self.study.tell(number, state=TrialState.FAIL)
            return
        if len(self.sweep.metrics) == 1:
            trial = outcome.trial
            run_dir = self.folder.path / str(trial.number if trial.same_as is None else trial.same_as)
            metric, direction = self.sweep.metrics[0], self.sweep.directions[0]
            values = {row["epoch"]: value_of(row, metric, direction) for row in epochs_of(run_dir)}
            self._report(known, {epoch: value for epoch, value in values.items() if value is not None})
        if outcome.status == "pruned":
            self.study.tell(number, state=TrialState.PRUNED)
        elif outcome.status == "completed":
            self.study.tell(number, list(outcome.values or ()))

    def _report(self, known: FrozenTrial, values: Mapping[int, float]) -> None:
        study_id = self.storage.get_study_id_from_name(self.study.study_name)
        trial_id = self.storage.get_trial_id_from_study_id_trial_number(study_id, known.number)
        for epoch, value in values.items():
            if epoch not in known.intermediate_values:
                self.storage.set_trial_intermediate_value(trial_id, epoch, value)


class Judgement:
    """The study and the pruner, as the process of one trial uses them."""

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
        """Tell the value of each epoch so far."""
        trial = self._storage.get_trial(self._trial_id)
        for epoch, value in values.items():
            if not trial.state.is_finished() and epoch not in trial.intermediate_values:
                self._storage.set_trial_intermediate_value(self._trial_id, epoch, value)

    def decision(self, epoch: int) -> str | None:
        """Why the trial ends after this epoch; None where it continues. Call :meth:`report` first."""
        options = self._options
        if epoch < options.delay_evaluation or epoch % options.evaluation_interval:
            return None
        trial = self._storage.get_trial(self._trial_id)
        if trial.state.is_finished() or not self._pruner.prune(self._study, trial):
            return None
        return f"{self._policy}: {self.metric} = {trial.intermediate_values[epoch]:.4g}"
