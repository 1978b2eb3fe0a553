"""Samplers, which propose the values of the next trial, and pruners, which end trials early.

Optuna's samplers keep the state of their random generator in memory: after a kill they would propose the same values
again. Here each trial has a fresh sampler, seeded by (seed, number of the trial), so that a proposal depends on these,
the search space and the results of earlier trials only.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from typing import Any, Literal, assert_never

from optuna.distributions import BaseDistribution
from optuna.pruners import (
    BasePruner,
    HyperbandPruner,
    MedianPruner,
    NopPruner,
    PercentilePruner,
    SuccessiveHalvingPruner,
)
from optuna.samplers import BaseSampler, GPSampler, NSGAIISampler, RandomSampler, TPESampler
from optuna.study import Study, StudyDirection
from optuna.trial import FrozenTrial, TrialState

from runner.config.schema.sweep import SweepConfig

SamplerName = Literal["random", "tpe", "gp", "nsga2"]


class SeededSampler(BaseSampler):
    """One of Optuna's samplers, created anew for each trial."""

    def __init__(self, name: SamplerName, seed: int) -> None:
        self.name = name
        self.seed = seed
        self.number: int | None = None
        """Number of the next trial; None for its number within the study."""

    def infer_relative_search_space(self, study: Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:
        """See BaseSampler."""
        return self._of(trial).infer_relative_search_space(study, trial)

    def sample_relative(
        self, study: Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        """See BaseSampler."""
        return self._of(trial).sample_relative(study, trial, search_space)

    def sample_independent(
        self, study: Study, trial: FrozenTrial, param_name: str, param_distribution: BaseDistribution
    ) -> Any:  # noqa: ANN401 - of Optuna's interface
        """See BaseSampler."""
        # Salted by the name: two parameters of a trial must not get the same random numbers.
        return self._of(trial, param_name).sample_independent(study, trial, param_name, param_distribution)

    def before_trial(self, study: Study, trial: FrozenTrial) -> None:
        """See BaseSampler."""
        self._of(trial).before_trial(study, trial)

    def after_trial(self, study: Study, trial: FrozenTrial, state: TrialState, values: Sequence[float] | None) -> None:
        """See BaseSampler."""
        self._of(trial).after_trial(study, trial, state, values)

    def _of(self, trial: FrozenTrial, salt: str = "") -> BaseSampler:
        number = trial.number if self.number is None else self.number
        digest = hashlib.sha256(f"{self.seed}/{number}/{salt}".encode()).digest()
        seed = int.from_bytes(digest[:4], "big")
        match self.name:
            case "random":
                return RandomSampler(seed)
            case "tpe":
                return TPESampler(seed=seed, constant_liar=True)
            case "gp":
                return GPSampler(seed=seed)
            case "nsga2":
                return NSGAIISampler(seed=seed)
            case _:
                assert_never(self.name)


class BanditPruner(BasePruner):
    """Ends a trial that is too far behind the best one at the same epoch (Azure Machine Learning's BanditPolicy).

    https://learn.microsoft.com/azure/machine-learning/how-to-tune-hyperparameters#bandit-policy

    With b the best value of this trial and B that of all trials, both up to this epoch: where more is better it ends
    when b < B / (1 + slack_factor), or b < B − slack_amount; where less is better, when b > B · (1 + slack_factor), or
    b > B + slack_amount.
    """

    def __init__(self, *, slack_factor: float | None, slack_amount: float | None) -> None:
        self.slack_factor = slack_factor
        self.slack_amount = slack_amount

    def prune(self, study: Study, trial: FrozenTrial) -> bool:
        """Whether to end the trial."""
        if trial.last_step is None:
            return False
        is_max = study.direction == StudyDirection.MAXIMIZE
        own = best_until(trial, trial.last_step, is_max)
        values = (best_until(other, trial.last_step, is_max) for other in study.get_trials(deepcopy=False))
        known = [value for value in values if value is not None]
        if own is None or not known:
            return False
        best = max(known) if is_max else min(known)
        if self.slack_factor is not None:
            return own < best / (1 + self.slack_factor) if is_max else own > best * (1 + self.slack_factor)
        assert self.slack_amount is not None, "the schema asks for one of them"
        return own < best - self.slack_amount if is_max else own > best + self.slack_amount


class TruncationPruner(BasePruner):
    """Ends the worst share of the running trials at each decision (Azure's TruncationSelectionPolicy).

    https://learn.microsoft.com/azure/machine-learning/how-to-tune-hyperparameters#truncation-selection-policy

    Of n running trials that have reached this epoch, the ⌊n · percent / 100⌋ end whose best value so far is worst; of
    equal ones the trial that was started later.
    """

    def __init__(self, percent: float) -> None:
        self.percent = percent

    def prune(self, study: Study, trial: FrozenTrial) -> bool:
        """Whether to end the trial."""
        step = trial.last_step
        if step is None:
            return False
        is_max = study.direction == StudyDirection.MAXIMIZE
        running = study.get_trials(deepcopy=False, states=(TrialState.RUNNING,))
        peers = [peer for peer in running if peer.number != trial.number and (peer.last_step or 0) >= step]
        ranked = sorted((*peers, trial), key=lambda peer: self._goodness(peer, step, is_max))
        num_ended = math.floor(len(ranked) * self.percent / 100)
        return trial.number in [peer.number for peer in ranked[:num_ended]]

    @staticmethod
    def _goodness(trial: FrozenTrial, step: int, is_max: bool) -> tuple[float, int]:
        value = best_until(trial, step, is_max)
        worst = -math.inf
        return (worst if value is None else value if is_max else -value), -trial.number


def best_until(trial: FrozenTrial, step: int, is_max: bool) -> float | None:
    """The best value of a trial up to this epoch; None where it has none."""
    values = (value for epoch, value in trial.intermediate_values.items() if epoch <= step and not math.isnan(value))
    return (max if is_max else min)(values, default=None)


def build_pruner(sweep: SweepConfig, max_epochs: int) -> BasePruner:  # noqa: PLR0911 - a table
    """The pruner that `sweep.pruner` and `sweep.pruning` ask for.

    Args:
        sweep: the section `sweep`.
        max_epochs: epochs of a whole trial, for hyperband's brackets.
    """
    options = sweep.pruning
    match sweep.pruner:
        case "none":
            return NopPruner()
        case "median":
            return MedianPruner(n_startup_trials=options.startup_trials)
        case "percentile":
            return PercentilePruner(options.percentile, n_startup_trials=options.startup_trials)
        case "successive_halving":
            return SuccessiveHalvingPruner(options.min_epochs, options.reduction_factor)
        case "hyperband":
            return HyperbandPruner(options.min_epochs, max(max_epochs, options.min_epochs), options.reduction_factor)
        case "bandit":
            return BanditPruner(slack_factor=options.slack_factor, slack_amount=options.slack_amount)
        case "truncation":
            return TruncationPruner(options.truncation_percent)
        case _:
            assert_never(sweep.pruner)
