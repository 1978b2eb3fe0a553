"""The learning rate as a pure function of progress, so that checkpoints hold no state of the schedule."""

from __future__ import annotations

import math
from typing import assert_never

import numpy as np

from runner.config.schema.schedule import (
    ConstantConfig,
    CosineConfig,
    PiecewiseConfig,
    PolyConfig,
    ScheduleConfig,
    StepConfig,
)


def learning_rate(config: ScheduleConfig, *, peak: float, epoch: float, epochs: int) -> float:
    """Learning rate at one point of the training.

    Warm-up is linear: start + (peak − start) · e / W for e < W. What follows is the schedule's own formula; poly is
    (peak − end) · (1 − (e − W) / (E − W))^power + end, as in Azure ML's Train PyTorch Model component.

    Args:
        config: the group `schedule`.
        peak: rate after warm-up, already scaled with the world size.
        epoch: progress e in epochs, from 0 up to `epochs`; rounded down where interval is epoch.
        epochs: length E of training.

    Returns:
        The rate, at least 0.
    """
    moment = math.floor(epoch) if config.interval == "epoch" else epoch
    warmup = config.warmup_epochs
    if moment < warmup:
        return config.start_lr + (peak - config.start_lr) * moment / warmup
    progress = min(1.0, (moment - warmup) / (epochs - warmup))
    match config:
        case PolyConfig():
            return (peak - config.end_lr) * math.pow(1 - progress, config.power) + config.end_lr
        case CosineConfig():
            return config.end_lr + (peak - config.end_lr) * 0.5 * (1 + math.cos(math.pi * progress))
        case StepConfig():
            return float(peak * config.gamma ** math.floor(moment / config.step_epochs))
        case PiecewiseConfig():
            epochs_of_points, factors = zip(*config.points, strict=True)
            return peak * float(np.interp(moment, epochs_of_points, factors))
        case ConstantConfig():
            return peak
        case _:
            assert_never(config)
