"""Rules of the group `schedule`."""

from __future__ import annotations

from itertools import pairwise
from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from runner.config.schema.base import ConfigSection

Point = tuple[Annotated[float, Field(ge=0)], Annotated[float, Field(ge=0)]]


class _Schedule(ConfigSection):
    warmup_epochs: Annotated[float, Field(ge=0)]
    """Epochs of linear warm-up from start_lr to the peak; fewer than trainer.epochs."""
    start_lr: Annotated[float, Field(ge=0)]
    """Learning rate at which warm-up begins; no effect without warm-up."""
    interval: Literal["step", "epoch"]
    """Whether the learning rate changes at every step (smooth) or once per epoch."""


class PolyConfig(_Schedule):
    """After warm-up: (peak − end_lr) × (1 − progress)^power + end_lr."""

    name: Literal["poly"]
    """Which schedule; set by the option of the group."""
    power: Annotated[float, Field(gt=0)]
    """Exponent of the decay; 1 is a straight line."""
    end_lr: Annotated[float, Field(ge=0)]
    """Learning rate at the end of training."""


class CosineConfig(_Schedule):
    """After warm-up: half a cosine from the peak to end_lr (Loshchilov & Hutter 2017, without restarts)."""

    name: Literal["cosine"]
    """Which schedule; set by the option of the group."""
    end_lr: Annotated[float, Field(ge=0)]
    """Learning rate at the end of training."""


class StepConfig(_Schedule):
    """After warm-up: peak × gamma^(number of times that step_epochs epochs have passed)."""

    name: Literal["step"]
    """Which schedule; set by the option of the group."""
    step_epochs: Annotated[float, Field(gt=0)]
    """Epochs between two drops, counted from the start of training."""
    gamma: Annotated[float, Field(gt=0, le=1)]
    """Factor of each drop."""


def _ascending(points: tuple[Point, ...]) -> tuple[Point, ...]:
    epochs = [epoch for epoch, _ in points]
    if any(later <= earlier for earlier, later in pairwise(epochs)):
        raise ValueError(f"the epochs of the points must ascend, got {epochs}")
    return points


class PiecewiseConfig(_Schedule):
    """After warm-up: straight lines between points. One-cycle (Smith 2018) has three; a level end is a cool-down."""

    name: Literal["piecewise"]
    """Which schedule; set by the option of the group."""
    points: Annotated[tuple[Point, ...], Field(min_length=1), AfterValidator(_ascending)]
    """[epoch, factor] each, in ascending order of the epochs: at that moment, counted from the start of training, the
    rate is factor × peak. Before the first point and after the last one the factor stays."""


class ConstantConfig(_Schedule):
    """After warm-up: the peak."""

    name: Literal["constant"]
    """Which schedule; set by the option of the group."""


ScheduleConfig = Annotated[
    PolyConfig | CosineConfig | StepConfig | PiecewiseConfig | ConstantConfig, Field(discriminator="name")
]
