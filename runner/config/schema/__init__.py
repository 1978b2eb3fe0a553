"""The rules of a config: types, ranges, units, cross-field rules. Imports no torch; values stand in conf/."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import yaml
from pydantic import Field, PrivateAttr

from runner.base.safe_text import masked_values
from runner.config.schema.base import AS_TYPED, NONE, PLACE, START, TRAINING, Section
from runner.config.schema.data import DataConfig
from runner.config.schema.dist import DistConfig
from runner.config.schema.model import ModelConfig
from runner.config.schema.optimizer import OptimizerConfig
from runner.config.schema.schedule import ScheduleConfig
from runner.config.schema.sweep import SweepConfig
from runner.config.schema.trainer import TrainerConfig

# The key that tells which variant of a group is meant; it is set by the group's option.
VARIANT_KEYS = {"model": "family", "data": "source", "optimizer": "name", "schedule": "name"}


_SAVED_AS_WRITTEN = ("dist.", "sweep.")


class Config(Section):
    """One experiment, complete and checked."""

    seed: Annotated[int, Field(ge=0, lt=2**63), START]
    """Seed of the weights, the data order, the augmentation and the split."""
    output_dir: Annotated[str, PLACE, AS_TYPED]
    """Folder under which run folders are made."""
    model: Annotated[ModelConfig, START]
    """What is trained."""
    data: DataConfig
    """What it is trained on."""
    optimizer: Annotated[OptimizerConfig, TRAINING]
    """How weights are updated."""
    schedule: Annotated[ScheduleConfig, TRAINING]
    """How the learning rate changes over time."""
    trainer: TrainerConfig
    """How long, how precisely and on what to train, and what to keep."""
    dist: DistConfig
    """How many processes on how many machines."""
    sweep: Annotated[SweepConfig, NONE]
    """What a multirun (-m) searches, how many trials at once, and what ends them early."""
    _written: Mapping[str, str] = PrivateAttr(default_factory=dict)

    def with_written(self, written: Mapping[str, str]) -> Config:
        """The same values, of which those of the environment are known as they were written.

        Args:
            written: `${oc.env:NAME}` and what stands around it, by full key.
        """
        known = self.model_copy()
        known._written = {key: text for key, text in written.items() if key.startswith(_SAVED_AS_WRITTEN)}
        return known

    def to_save(self) -> dict[str, Any]:
        """The values as they are saved and shown, as plain JSON.

        Of `dist` and `sweep`, which don't decide about the result, what comes from the environment stands as it was
        written: it may be a secret. Elsewhere a saved run could not be explained or repeated without the value itself.
        User information in addresses is masked everywhere.
        """
        values: dict[str, Any] = masked_values(self.model_dump(mode="json"))
        for key, text in self._written.items():
            *parents, last = (int(part) if part.isdecimal() else part for part in key.split("."))
            node: Any = values
            for part in parents:
                node = node[part]
            if isinstance(node[last], str):
                node[last] = text
        return values

    def to_yaml(self) -> str:
        """The values in the order of the schema, as they are saved and shown."""
        return yaml.safe_dump(self.to_save(), sort_keys=False, allow_unicode=True)
