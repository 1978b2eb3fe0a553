"""Builds the torchvision transform for one entry of a transform list.

All map uint8 tensors of shape (3, height, width) to such tensors, and draw from torch's CPU generator only.
"""

from __future__ import annotations

from typing import Any, assert_never

from torch import nn
from torchvision.transforms import v2

from runner.config.schema.transforms import (
    AugMix,
    AutoAugment,
    CenterCrop,
    ColorJitter,
    ColourTransform,
    FixedTransform,
    GaussianBlur,
    GeometricTransform,
    Grayscale,
    Interpolation,
    NormalizeEntry,
    Pad,
    PolicyTransform,
    RandAugment,
    RandomAffine,
    RandomCrop,
    RandomEqualize,
    RandomErasing,
    RandomGrayscale,
    RandomHorizontalFlip,
    RandomInvert,
    RandomPerspective,
    RandomPosterize,
    RandomResizedCrop,
    RandomRotation,
    RandomSolarize,
    RandomVerticalFlip,
    Resize,
    Transform,
    TrivialAugment,
    WarpInterpolation,
)
from runner.data.images.geometry import shorter_side_after_resize


def build_transform(transform: Transform) -> nn.Module:
    """The transform of torchvision.transforms.v2 for an entry."""
    step: nn.Module
    match transform:
        case Resize() | CenterCrop() | Pad() | Grayscale() | NormalizeEntry():
            step = _fixed(transform)
        case AutoAugment() | RandAugment() | TrivialAugment() | AugMix():
            step = _policy(transform)
        case (
            RandomResizedCrop()
            | RandomCrop()
            | RandomHorizontalFlip()
            | RandomVerticalFlip()
            | RandomRotation()
            | RandomAffine()
            | RandomPerspective()
        ):
            step = _geometric(transform)
        case _:
            step = _colour(transform)
    return step


def _fixed(transform: FixedTransform) -> Any:  # noqa: ANN401 - torchvision has no types
    match transform:
        case Resize():
            side = shorter_side_after_resize(transform)
            return v2.Resize(side, interpolation=_sampling(transform.interpolation), antialias=True)
        case CenterCrop():
            return v2.CenterCrop(transform.size)
        case Pad():
            sides = transform.padding if isinstance(transform.padding, int) else list(transform.padding)
            return v2.Pad(sides, fill=transform.fill, padding_mode=transform.mode)
        case Grayscale():
            return v2.Grayscale(num_output_channels=3)
        case NormalizeEntry():
            # Normalizer does it on the device, for a whole batch at once.
            return v2.Identity()
        case _:
            assert_never(transform)


def _geometric(transform: GeometricTransform) -> Any:  # noqa: ANN401, PLR0911 - a table
    match transform:
        case RandomResizedCrop(size=size, scale=scale, ratio=ratio):
            sampling = _sampling(transform.interpolation)
            return v2.RandomResizedCrop(size, scale=scale, ratio=ratio, interpolation=sampling, antialias=True)
        case RandomCrop(size=size, padding=padding, fill=fill, mode=mode):
            return v2.RandomCrop(size, padding=padding or None, pad_if_needed=True, fill=fill, padding_mode=mode)
        case RandomHorizontalFlip():
            return v2.RandomHorizontalFlip(transform.p)
        case RandomVerticalFlip():
            return v2.RandomVerticalFlip(transform.p)
        case RandomRotation(degrees=degrees, fill=fill):
            return v2.RandomRotation(degrees, interpolation=_warping(transform.interpolation), fill=fill)
        case RandomAffine():
            return v2.RandomAffine(
                transform.degrees,
                translate=transform.translate,
                scale=transform.scale,
                shear=transform.shear,
                interpolation=_warping(transform.interpolation),
                fill=transform.fill,
            )
        case RandomPerspective(distortion_scale=distortion, p=p, fill=fill):
            return v2.RandomPerspective(distortion, p, interpolation=_warping(transform.interpolation), fill=fill)
        case _:
            assert_never(transform)


def _colour(transform: ColourTransform) -> Any:  # noqa: ANN401, PLR0911 - a table
    match transform:
        case ColorJitter():
            return v2.ColorJitter(transform.brightness, transform.contrast, transform.saturation, transform.hue)
        case RandomGrayscale():
            return v2.RandomGrayscale(transform.p)
        case RandomSolarize():
            return v2.RandomSolarize(transform.threshold, transform.p)
        case RandomPosterize():
            return v2.RandomPosterize(transform.bits, transform.p)
        case RandomEqualize():
            return v2.RandomEqualize(transform.p)
        case RandomInvert():
            return v2.RandomInvert(transform.p)
        case GaussianBlur():
            return v2.GaussianBlur(transform.kernel_size, transform.sigma)
        case RandomErasing():
            return v2.RandomErasing(transform.p, transform.scale, transform.ratio, transform.value)
        case _:
            assert_never(transform)


def _policy(transform: PolicyTransform) -> Any:  # noqa: ANN401
    match transform:
        case AutoAugment():
            return v2.AutoAugment(v2.AutoAugmentPolicy(transform.policy))
        case RandAugment():
            return v2.RandAugment(transform.num_ops, transform.magnitude)
        case TrivialAugment():
            return v2.TrivialAugmentWide()
        case AugMix():
            # With −1 torchvision draws the depth.
            depth = -1 if transform.chain_depth is None else transform.chain_depth
            return v2.AugMix(transform.severity, transform.mixture_width, depth, transform.alpha)
        case _:
            assert_never(transform)


def _sampling(name: Interpolation) -> Any:  # noqa: ANN401
    match name:
        case "bilinear":
            return v2.InterpolationMode.BILINEAR
        case "bicubic":
            return v2.InterpolationMode.BICUBIC
        case "nearest":
            # It agrees with Pillow; torchvision keeps plain NEAREST for old models.
            return v2.InterpolationMode.NEAREST_EXACT
        case _:
            assert_never(name)


def _warping(name: WarpInterpolation) -> Any:  # noqa: ANN401
    match name:
        case "bilinear":
            return v2.InterpolationMode.BILINEAR
        case "nearest":
            return v2.InterpolationMode.NEAREST
        case _:
            assert_never(name)
