"""The rules of a config: types, ranges, units. Imports no torch; the values are in conf/."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated, Any

import yaml
from pydantic import Field, PrivateAttr

from runner.base.safe_text import mask_credentials_in
from runner.config.schema.base import AS_TYPED, NONE, PLACE, START, TRAINING, ConfigSection, LocalPath
from runner.config.schema.data import DataConfig
from runner.config.schema.dist import DistConfig
from runner.config.schema.distill import DistillConfig
from runner.config.schema.model import ModelConfig
from runner.config.schema.optimizer import OptimizerConfig
from runner.config.schema.run import RunConfig
from runner.config.schema.schedule import ScheduleConfig
from runner.config.schema.sweep import SweepConfig
from runner.config.schema.tracker import TrackerConfig
from runner.config.schema.trainer import TrainerConfig

# The key that names the variant of a group; it is set by the group's option.
VARIANT_KEYS = {"model": "family", "data": "source", "optimizer": "name", "schedule": "name"}
_SAVED_AS_WRITTEN = ("dist.", "sweep.", "tracker.")


class Config(ConfigSection):
    """One experiment, complete and checked."""

    seed: Annotated[int, Field(ge=0, lt=2**63), START]
    """Seed of the weights, the data order, the augmentation and the split."""
    output_dir: Annotated[LocalPath, PLACE, AS_TYPED]
    """Folder under which run folders are made."""
    run: Annotated[RunConfig, NONE]
    """How the run is named."""
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
    distill: DistillConfig
    """A trained model to learn from."""
    dist: DistConfig
    """How many processes on how many machines."""
    sweep: Annotated[SweepConfig, NONE]
    """What a sweep (-m) searches, how many trials run at once, and what ends them early."""
    tracker: Annotated[TrackerConfig, NONE]
    """Who is told of the run besides its folder; several at once: tracker=[mlflow,csv]."""
    _written: Mapping[str, str] = PrivateAttr(default_factory=dict)
    _experiments: tuple[str, ...] = PrivateAttr(default=())

    def with_written(self, written: Mapping[str, str]) -> Config:
        """The same config, which saves values of the environment as they were written.

        Args:
            written: texts with `${oc.env:NAME}`, by full key.
        """
        known = self.model_copy()
        known._written = {key: text for key, text in written.items() if key.startswith(_SAVED_AS_WRITTEN)}
        return known

    @property
    def experiments(self) -> tuple[str, ...]:
        """The files of the experiments that were chosen, as full paths; for the log, and not saved."""
        return self._experiments

    def with_experiments(self, files: Iterable[str]) -> Config:
        """The same config, which knows the files of its experiments."""
        known = self.model_copy()
        known._experiments = tuple(files)
        return known

    def to_save(self) -> dict[str, Any]:
        """The values as they are saved and shown, as plain JSON.

        Values of `dist`, `sweep` and `tracker` that come from the environment are saved as they were written, as they
        may be secrets and don't change the result. In other groups the value itself is saved, so that the run can be
        repeated.
        Credentials in addresses are masked everywhere.
        """
        values: dict[str, Any] = mask_credentials_in(self.model_dump(mode="json"))
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
