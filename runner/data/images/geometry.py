"""Checks from the config that a list of transforms results in squares of data.image_size."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from typing import assert_never

from runner.base.errors import Problem
from runner.config.schema.data import (
    DataConfig,
    DigitsData,
    SyntheticData,
    TorchvisionData,
    TorchvisionDatasetName,
)
from runner.config.schema.transforms import CenterCrop, Pad, RandomCrop, RandomResizedCrop, Resize, Transform


@dataclass(frozen=True)
class Extent:
    """The size of all images at one point of a pipeline, as far as the config determines it."""

    shorter_side: int | None
    """In pixels; None if images differ."""
    is_square: bool


def find_size_problems(data: DataConfig) -> list[Problem]:
    """Problems of transforms whose results are not data.image_size × data.image_size, or that fail on some image."""
    pipelines = {"data.train_transforms": data.train_transforms, "data.eval_transforms": data.eval_transforms}
    return [
        problem
        for key, transforms in pipelines.items()
        for find in (_size_problem, _mirror_problem)
        if (problem := find(key, transforms, data)) is not None
    ]


def shorter_side_after_resize(resize: Resize) -> int:
    """Length in pixels of the shorter side of a resized image."""
    return round(resize.size / resize.crop_fraction)


def _size_problem(key: str, transforms: Sequence[Transform], data: DataConfig) -> Problem | None:
    extent = reduce(_after, transforms, _at_start(data))
    size = data.image_size
    if extent == Extent(size, is_square=True):
        return None
    if extent.is_square:
        found = f"gives images of {extent.shorter_side} × {extent.shorter_side} pixels"
    elif extent.shorter_side is not None:
        found = f"gives images whose shorter side is {extent.shorter_side} pixels and whose longer side varies"
    else:
        found = "gives images of different sizes"
    crop = f"{{name: center_crop, size: {size}}}"
    if key == "data.train_transforms":
        crop += f" or {{name: random_resized_crop, size: {size}}}"
    return Problem(
        key=key,
        message=f"{found}, but the model sees {size} × {size} (data.image_size)",
        hint=f"end the list with {crop}",
    )


def _after(extent: Extent, transform: Transform) -> Extent:
    match transform:
        case Resize():
            return Extent(shorter_side_after_resize(transform), extent.is_square)
        case CenterCrop() | RandomResizedCrop() | RandomCrop():
            return Extent(transform.size, is_square=True)
        case Pad(padding=int(padding)):
            return Extent(extent.shorter_side and extent.shorter_side + 2 * padding, extent.is_square)
        case Pad(padding=(left, top, right, bottom)):
            is_square = extent.is_square and left + right == top + bottom
            # Different padding of height and width: the shorter side is known for a square image only.
            is_known = extent.is_square or left + right == top + bottom
            side = extent.shorter_side if is_known else None
            return Extent(side and side + min(left + right, top + bottom), is_square)
        case _:
            return extent  # all others keep the size


def _mirror_problem(key: str, transforms: Sequence[Transform], data: DataConfig) -> Problem | None:
    """A transform of mode reflect whose padding may be larger than an image allows."""
    extent = _at_start(data)
    for number, transform in enumerate(transforms):
        needed = _mirrored_pixels(transform, extent.shorter_side)
        if needed and (extent.shorter_side is None or extent.shorter_side <= needed):
            side = "of unknown size" if extent.shorter_side is None else f"of {extent.shorter_side} pixels"
            return Problem(
                key=f"{key}.{number}.mode",
                value="reflect",
                has_value=True,
                message=f"can add at most one pixel less than the image has, here {needed} to a shorter side {side}",
                hint="resize before, or use mode edge",
            )
        extent = _after(extent, transform)
    return None


def _mirrored_pixels(transform: Transform, shorter_side: int | None) -> int:
    """The most pixels that mode reflect adds on one side; 0 where it does not mirror."""
    match transform:
        case Pad(mode="reflect", padding=padding):
            return padding if isinstance(padding, int) else max(padding)
        case RandomCrop(mode="reflect", size=size, padding=padding):
            missing = size - (shorter_side or 0) - 2 * padding
            return max(padding, missing if missing > 0 else 0)
        case _:
            return 0


def _at_start(data: DataConfig) -> Extent:
    match data:
        case DigitsData():
            return Extent(8, is_square=True)
        case TorchvisionData():
            side = _square_side(data.name)
            return Extent(side, is_square=side is not None)
        case SyntheticData():
            return Extent(data.image_size, is_square=True)
        case _:  # files may have any size
            return Extent(None, is_square=False)


def _square_side(name: TorchvisionDatasetName) -> int | None:
    match name:
        case "MNIST" | "FashionMNIST" | "KMNIST":
            return 28
        case "CIFAR10" | "CIFAR100" | "SVHN":
            return 32
        case "EuroSAT":
            return 64
        case "STL10":
            return 96
        case "DTD" | "FGVCAircraft" | "Flowers102" | "Food101" | "GTSRB" | "OxfordIIITPet":
            return None
        case _:
            assert_never(name)
