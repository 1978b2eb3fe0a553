"""Whether a list of transforms ends in squares of data.image_size, told from the config alone, before any image."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from typing import assert_never

from runner.errors import Problem
from runner.schema.data import (
    DataConfig,
    DigitsData,
    FolderData,
    SyntheticData,
    TorchvisionData,
    TorchvisionDatasetName,
)
from runner.schema.transforms import (
    CenterCrop,
    RandomCrop,
    RandomHorizontalFlip,
    RandomResizedCrop,
    Resize,
    Transform,
)


@dataclass(frozen=True)
class Extent:
    """What is known of the size of all images at one point of a pipeline."""

    shorter_side: int | None
    """In pixels; None where images differ."""
    is_square: bool


def find_size_problems(data: DataConfig) -> list[Problem]:
    """Lists of transforms whose images do not all measure data.image_size × data.image_size."""
    pipelines = {"data.train_transforms": data.train_transforms, "data.eval_transforms": data.eval_transforms}
    return [
        problem
        for key, transforms in pipelines.items()
        if (problem := _size_problem(key, transforms, data)) is not None
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
        case RandomHorizontalFlip():
            return extent
        case _:
            assert_never(transform)


def _at_start(data: DataConfig) -> Extent:
    match data:
        case FolderData():
            return Extent(None, is_square=False)
        case DigitsData():
            return Extent(8, is_square=True)
        case TorchvisionData():
            side = _square_side(data.name)
            return Extent(side, is_square=side is not None)
        case SyntheticData():
            return Extent(data.image_size, is_square=True)
        case _:
            assert_never(data)


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
