"""What a search would propose first, without a folder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import optuna
from optuna.storages import InMemoryStorage

from runner.config.schema.sweep import SweepConfig
from runner.tools.sweep.axes import Axis
from runner.tools.sweep.parameters import proposed_values, starting_points
from runner.tools.sweep.samplers import SamplerName, SeededSampler


def first_proposals(
    config: SweepConfig, axes: Sequence[Axis], sampler: SamplerName, num_proposals: int
) -> list[Mapping[str, str]]:
    """The first proposals of a search, as long as it knows no result.

    Raises:
        ConfigError: a starting point that does not fit the space.
    """
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    study = optuna.create_study(
        storage=InMemoryStorage(),
        directions=list(config.directions),
        sampler=SeededSampler(sampler, config.seed),
    )
    for point in starting_points(config, axes):
        study.enqueue_trial(point)
    return [proposed_values(study.ask(), axes) for _ in range(num_proposals)]
