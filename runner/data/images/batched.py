"""Finds from the config whether transforms can be applied to a whole batch at once, as data.cache=device needs."""

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
    """A list of transforms, split into a fixed part and a random one for batches."""

    fixed: tuple[Transform, ...]
    """Not random: applied once to each image."""
    crop: RandomCrop | None
    horizontal_flip: float
    """Its probability."""
    vertical_flip: float
    """Its probability."""


def split_transforms(transforms: Sequence[Transform]) -> BatchedTransforms | Transform:
    """The list in its two parts, or the first transform that fits neither.

    A flip before the crop is equivalent to one after it, because crops are uniform over an image with the same padding
    on all sides.
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
                # Two flips give a flipped image if exactly one of them is applied.
                before = flips[transform.name]
                flips[transform.name] = before * (1 - transform.p) + transform.p * (1 - before)
                is_random = True
            case _:
                return transform
    return BatchedTransforms(tuple(fixed), crop, flips["random_horizontal_flip"], flips["random_vertical_flip"])


def find_cache_problems(data: DataConfig) -> list[Problem]:
    """The problem of data.train_transforms that data.cache=device can't apply."""
    if data.cache != "device":
        return []
    if data.progressive_resizing:
        message = "keeps images of one size, but data.progressive_resizing has several"
        return [
            Problem(key="data.cache", value="device", has_value=True, message=message, hint="use data.cache=memory")
        ]
    refused = split_transforms(data.train_transforms)
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
