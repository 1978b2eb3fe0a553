"""What proposes the values of the next trial: Optuna's samplers, seeded anew for each trial.

A sampler that lives through a search keeps the state of its generator in memory: after a kill it would begin anew and
propose the same again. Seeded by (seed, number of the trial), a proposal depends on nothing but that, the search space
and what is known of the trials before.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any, Literal, assert_never

from optuna.distributions import BaseDistribution
from optuna.samplers import BaseSampler, GPSampler, NSGAIISampler, RandomSampler, TPESampler
from optuna.study import Study
from optuna.trial import FrozenTrial, TrialState

SamplerName = Literal["random", "tpe", "gp", "nsga2"]


class SeededSampler(BaseSampler):
    """For each trial a fresh sampler."""

    def __init__(self, name: SamplerName, seed: int) -> None:
        """Plain values.

        Args:
            name: which.
            seed: of the search.
        """
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
        # By name as well: each parameter comes from a sampler that begins anew.
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
