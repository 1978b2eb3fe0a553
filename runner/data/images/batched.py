"""Which lists of transforms can be drawn for a whole batch at once (data.cache=device), told from the config alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from runner.base.errors import Problem
from runner.config.schema.data import DataConfig
from runner.config.schema.transforms import (
    CenterCrop,
    Grayscale,
    NormalizeEntry,
    Pad,
    RandomCrop,
    RandomHorizontalFlip,
    RandomVerticalFlip,
    Resize,
    Transform,
)


@dataclass(frozen=True)
class BatchedTransforms:
    """A list of transforms, parted."""

    fixed: tuple[Transform, ...]
    """Always the same: done once to each image."""
    crop: RandomCrop | None
    horizontal_flip: float
    """Its probability."""
    vertical_flip: float
    """Its probability."""


def parted(transforms: Sequence[Transform]) -> BatchedTransforms | Transform:
    """The list in its two parts, or the first transform that has no place in them.

    A flip before the crop is as good as one after it: crops are spread evenly over an image that is padded alike on
    all sides.
    """
    fixed: list[Transform] = []
    crop: RandomCrop | None = None
    flips = {"random_horizontal_flip": 0.0, "random_vertical_flip": 0.0}
    is_random = False
    for transform in transforms:
        match transform:
            case NormalizeEntry():
                pass
            case Resize() | CenterCrop() | Pad() | Grayscale() if not is_random:
                fixed.append(transform)
            case RandomCrop() if crop is None:
                crop, is_random = transform, True
            case RandomHorizontalFlip() | RandomVerticalFlip():
                # Two flips are one, if exactly one of them happens.
                before = flips[transform.name]
                flips[transform.name] = before * (1 - transform.p) + transform.p * (1 - before)
                is_random = True
            case _:
                return transform
    return BatchedTransforms(tuple(fixed), crop, flips["random_horizontal_flip"], flips["random_vertical_flip"])


def find_cache_problems(data: DataConfig) -> list[Problem]:
    """A list that data.cache=device can't do."""
    if data.cache != "device":
        return []
    refused = parted(data.train_transforms)
    if isinstance(refused, BatchedTransforms):
        return []
    return [
        Problem(
            key="data.cache",
            value="device",
            has_value=True,
            message=f"can't do {refused.name} of data.train_transforms for a whole batch at once: "
            "after fixed transforms it can do one random_crop, random_horizontal_flip and random_vertical_flip",
            hint="use data.cache=memory, or other train_transforms",
        )
    ]
