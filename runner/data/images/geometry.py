"""The sizes that images have after transforms; checks that the model sees those of the config."""

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
from runner.config.schema.transforms import (
    CenterCrop,
    Pad,
    RandomCrop,
    RandomResizedCrop,
    Resize,
    Transform,
    height_and_width,
)


@dataclass(frozen=True)
class Extent:
    """The size in pixels of all images at one point of a pipeline, as far as the config determines it."""

    height: int | None = None
    """None if images differ, as with `width`; both are known, or neither."""
    width: int | None = None
    shorter_side: int | None = None
    """None if images differ."""

    @classmethod
    def known(cls, height: int, width: int) -> Extent:
        """The same for all images."""
        return cls(height, width, min(height, width))


def find_size_problems(data: DataConfig) -> list[Problem]:
    """Problems of transforms whose results are not of the size that the model sees, or that fail on some image."""
    pipelines = {"data.train_transforms": data.train_transforms, "data.eval_transforms": data.eval_transforms}
    return [
        problem
        for key, transforms in pipelines.items()
        for find in (_size_problem, _mirror_problem)
        if (problem := find(key, transforms, data)) is not None
    ] + [
        problem
        for number, entry in enumerate(data.progressive_resizing)
        if (problem := _scaling_problem(f"data.progressive_resizing.{number}", entry.image_size, data)) is not None
    ]


def scaled_transforms(data: DataConfig, image_size: int | tuple[int, int]) -> tuple[Transform, ...]:
    """The training transforms for images of another size: sizes within them are scaled as it is to data.image_size."""
    pairs = zip(height_and_width(image_size), height_and_width(data.image_size), strict=True)
    ratios = [wanted / full for wanted, full in pairs]
    return tuple(_scaled(transform, ratios) for transform in data.train_transforms)


def _scaled(transform: Transform, ratios: Sequence[float]) -> Transform:
    if not isinstance(transform, Resize | CenterCrop | RandomCrop | RandomResizedCrop):
        return transform
    match transform.size:
        case int() as side:
            size: int | tuple[int, ...] = max(1, round(side * max(ratios)))
        case sides:
            size = tuple(max(1, round(side * ratio)) for side, ratio in zip(sides, ratios, strict=True))
    return transform.model_copy(update={"size": size})


def _scaling_problem(key: str, image_size: int | tuple[int, int], data: DataConfig) -> Problem | None:
    """Transforms that do not follow when their sizes are scaled, such as a padding."""
    extent = reduce(
        lambda before, transform: _after(before, transform, data), scaled_transforms(data, image_size), _at_start(data)
    )
    height, width = height_and_width(image_size)
    if (extent.height, extent.width) == (height, width):
        return None
    found = "different sizes" if extent.height is None else f"{extent.height} × {extent.width}"
    return Problem(
        key=f"{key}.image_size",
        value=image_size if isinstance(image_size, int) else list(image_size),
        has_value=True,
        message=f"the sizes within data.train_transforms, scaled for it, give images of {found}, not of "
        f"{height} × {width}",
        hint="end data.train_transforms with a resize or a crop to data.image_size",
    )


def covered_size(resize: Resize) -> int | tuple[int, int]:
    """What an image covers after resizing with data.resize=crop, in pixels: its shorter side, or [height, width]."""
    if isinstance(resize.size, int):
        return round(resize.size / resize.crop_fraction)
    height, width = resize.size
    return round(height / resize.crop_fraction), round(width / resize.crop_fraction)


def resized_size(resize: Resize, mode: str, height: int, width: int) -> tuple[int, int]:
    """Height and width of an image after scaling, before anything is filled; in pixels.

    Args:
        resize: the entry.
        mode: data.resize.
        height, width: of the image.
    """
    full_height, full_width = height_and_width(resize.size)
    if mode == "squash":
        return full_height, full_width
    if mode == "letterbox":
        scale = min(full_height / height, full_width / width)
        # Of an image that is long enough, less than a pixel would be left.
        return max(1, min(full_height, round(height * scale))), max(1, min(full_width, round(width * scale)))
    covered = covered_size(resize)
    if isinstance(covered, int):  # as torchvision's Resize
        longer = int(covered * max(height, width) / min(height, width))
        return (covered, longer) if height <= width else (longer, covered)
    scale = max(covered[0] / height, covered[1] / width)
    return max(covered[0], round(height * scale)), max(covered[1], round(width * scale))


def _size_problem(key: str, transforms: Sequence[Transform], data: DataConfig) -> Problem | None:
    extent = reduce(lambda before, transform: _after(before, transform, data), transforms, _at_start(data))
    size_key = "data.image_size" if key == "data.train_transforms" else "data.eval_image_size"
    size = data.image_size if key == "data.train_transforms" else data.eval_image_size
    height, width = height_and_width(size)
    if (extent.height, extent.width) == (height, width):
        return None
    if extent.height is not None:
        order = "" if extent.height == extent.width else " (height × width)"
        found = f"gives images of {extent.height} × {extent.width} pixels{order}"
    elif extent.shorter_side is not None:
        found = f"gives images whose shorter side is {extent.shorter_side} pixels and whose longer side varies"
    else:
        found = "gives images of different sizes"
    shown = size if isinstance(size, int) else list(size)
    crop = f"{{name: center_crop, size: {shown}}}"
    if key == "data.train_transforms":
        crop += f" or {{name: random_resized_crop, size: {shown}}}"
    return Problem(
        key=key,
        message=f"{found}, but the model sees {height} × {width} ({size_key})",
        hint=f"end the list with {crop}",
    )


def _after(extent: Extent, transform: Transform, data: DataConfig) -> Extent:
    match transform:
        case Resize() if data.resize != "crop":
            return Extent.known(*height_and_width(transform.size))
        case Resize() if extent.height is not None and extent.width is not None:
            return Extent.known(*resized_size(transform, "crop", extent.height, extent.width))
        case Resize():
            covered = covered_size(transform)
            return Extent(shorter_side=covered if isinstance(covered, int) else None)
        case CenterCrop() | RandomResizedCrop() | RandomCrop():
            return Extent.known(*height_and_width(transform.size))
        case Pad():
            return _after_padding(extent, transform)
        case _:
            return extent  # all others keep the size


def _after_padding(extent: Extent, pad: Pad) -> Extent:
    left, top, right, bottom = [pad.padding] * 4 if isinstance(pad.padding, int) else pad.padding
    if extent.height is not None and extent.width is not None:
        return Extent.known(extent.height + top + bottom, extent.width + left + right)
    # Either side may be the shorter one, so that both must grow alike.
    is_known = extent.shorter_side is not None and left + right == top + bottom
    return Extent(shorter_side=(extent.shorter_side or 0) + left + right if is_known else None)


def _mirror_problem(key: str, transforms: Sequence[Transform], data: DataConfig) -> Problem | None:
    """A transform of mode reflect whose padding may be larger than an image allows."""
    extent = _at_start(data)
    for number, transform in enumerate(transforms):
        needed = _mirrored_pixels(transform, extent)
        if needed and (extent.shorter_side is None or extent.shorter_side <= needed):
            side = "of unknown size" if extent.shorter_side is None else f"of {extent.shorter_side} pixels"
            return Problem(
                key=f"{key}.{number}.mode",
                value="reflect",
                has_value=True,
                message=f"can add at most one pixel less than the image has, here {needed} to a shorter side {side}",
                hint="resize before, or use mode edge",
            )
        extent = _after(extent, transform, data)
    return None


def _mirrored_pixels(transform: Transform, extent: Extent) -> int:
    """The most pixels that mode reflect adds on one side; 0 where it does not mirror."""
    match transform:
        case Pad(mode="reflect", padding=padding):
            return padding if isinstance(padding, int) else max(padding)
        case RandomCrop(mode="reflect", size=size, padding=padding):
            shorter = extent.shorter_side or 0
            present = (extent.height or shorter, extent.width or shorter)
            wanted = height_and_width(size)
            missing = max(want - has - 2 * padding for want, has in zip(wanted, present, strict=True))
            return max(padding, missing if missing > 0 else 0)
        case _:
            return 0


def _at_start(data: DataConfig) -> Extent:
    match data:
        case DigitsData():
            return Extent.known(8, 8)
        case TorchvisionData():
            side = _square_side(data.name)
            return Extent() if side is None else Extent.known(side, side)
        case SyntheticData():
            return Extent.known(*height_and_width(data.image_size))
        case _:  # files may have any size
            return Extent()


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
