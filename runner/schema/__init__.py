"""The rules of a config: types, ranges, units, cross-field rules. Imports no torch; values stand in conf/."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from runner.schema.base import Section
from runner.schema.data import DataConfig
from runner.schema.dist import DistConfig
from runner.schema.model import ModelConfig
from runner.schema.optimizer import OptimizerConfig
from runner.schema.schedule import ScheduleConfig
from runner.schema.sweep import SweepConfig
from runner.schema.trainer import TrainerConfig

# The key that tells which variant of a group is meant; it is set by the group's option.
VARIANT_KEYS = {"model": "family", "data": "source", "optimizer": "name", "schedule": "name"}


class Config(Section):
    """One experiment, complete and checked."""

    seed: Annotated[int, Field(ge=0, lt=2**63)]
    """Seed of the weights, the data order, the augmentation and the split."""
    output_dir: str
    """Folder under which run folders are made."""
    model: ModelConfig
    """What is trained."""
    data: DataConfig
    """What it is trained on."""
    optimizer: OptimizerConfig
    """How weights are updated."""
    schedule: ScheduleConfig
    """How the learning rate changes over time."""
    trainer: TrainerConfig
    """How long, how precisely and on what to train, and what to keep."""
    dist: DistConfig
    """How many processes on how many machines."""
    sweep: SweepConfig
    """What a multirun (-m) searches, how many trials at once, and what ends them early."""
