"""Builds the torchvision transform for one entry of a transform list.

All map uint8 tensors of shape (channels, height, width) to such tensors, or with 16 bits float32 tensors of values in
[0, 1], and draw from torch's CPU generator only.
"""

from __future__ import annotations

from typing import Any, assert_never

from torch import Tensor, nn
from torchvision.transforms import v2
from torchvision.transforms.v2 import functional

from runner.config.schema.transforms import (
    AugMix,
    AutoAugment,
    CenterCrop,
    ColorJitter,
    ColourTransform,
    CustomTransform,
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
    height_and_width,
)
from runner.data.images.geometry import covered_size, resized_size
from runner.data.images.stored import RGB, InputFormat
from runner.data.images.users import UserTransform


def build_transform(transform: Transform, form: InputFormat = RGB) -> nn.Module:
    """The transform of torchvision.transforms.v2 for an entry, for images of a format."""
    step: nn.Module
    match transform:
        case CustomTransform():
            step = UserTransform(transform)
        case Resize() | CenterCrop() | Pad() | Grayscale() | NormalizeEntry():
            step = _fixed(transform, form)
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
            step = _geometric(transform, form)
        case _:
            step = _colour(transform, form)
    return step


class _ToSize(nn.Module):
    """A resize that torchvision has none for: it covers a rectangle, or fits into one, which is then filled.

    Letterboxing as in YOLO (Redmon et al. 2016), the image in the middle.
    """

    def __init__(self, resize: Resize, form: InputFormat) -> None:
        super().__init__()
        self._resize = resize
        self._form = form

    def forward(self, image: Tensor) -> Tensor:
        """Scale an image of shape (channels, height, width), and fill what is missing beside it."""
        height, width = resized_size(self._resize, self._form.resize, *image.shape[-2:])
        sampling = _sampling(self._resize.interpolation)
        resized: Tensor = functional.resize(image, [height, width], interpolation=sampling, antialias=True)
        if self._form.resize == "crop":
            return resized
        full_height, full_width = height_and_width(self._resize.size)
        left, top = (full_width - width) // 2, (full_height - height) // 2
        sides = [left, top, full_width - width - left, full_height - height - top]
        padded: Tensor = functional.pad(resized, sides, fill=grey_value(self._form.fill, self._form))
        return padded


class _Clamp(nn.Module):
    """Cuts what bicubic resampling overshoots, as torchvision does for uint8 only."""

    def forward(self, image: Tensor) -> Tensor:
        """Clamp values to [0, 1]."""
        return image.clamp(0, 1)


def grey_value(grey: int, form: InputFormat) -> int | float:
    """A grey of 0 … 255 as a value of the images: with 16 bits they are in [0, 1]."""
    return grey if form.bit_depth == 8 else grey / 255


def _fixed(transform: Resize | CenterCrop | Pad | Grayscale | NormalizeEntry, form: InputFormat) -> Any:  # noqa: ANN401 - torchvision has no types
    match transform:
        case Resize():
            step = _resize(transform, form)
            is_clamped = form.bit_depth == 16 and transform.interpolation == "bicubic"
            return nn.Sequential(step, _Clamp()) if is_clamped else step
        case CenterCrop():
            return v2.CenterCrop(transform.size)
        case Pad():
            sides = transform.padding if isinstance(transform.padding, int) else list(transform.padding)
            return v2.Pad(sides, fill=grey_value(transform.fill, form), padding_mode=transform.mode)
        case Grayscale():
            return v2.Grayscale(num_output_channels=form.channels)
        case NormalizeEntry():
            # Normalizer does it on the device, for a whole batch at once.
            return v2.Identity()
        case _:
            assert_never(transform)


def _resize(transform: Resize, form: InputFormat) -> nn.Module:
    sampling = _sampling(transform.interpolation)
    match form.resize:
        case "crop" if isinstance(transform.size, int):
            resize: nn.Module = v2.Resize(covered_size(transform), interpolation=sampling, antialias=True)
        case "squash":
            sides = height_and_width(transform.size)
            resize = v2.Resize(sides, interpolation=sampling, antialias=True)
        case _:
            resize = _ToSize(transform, form)
    return resize


def _geometric(transform: GeometricTransform, form: InputFormat) -> Any:  # noqa: ANN401, PLR0911 - a table
    match transform:
        case RandomResizedCrop(size=size, scale=scale, ratio=ratio):
            sampling = _sampling(transform.interpolation)
            return v2.RandomResizedCrop(size, scale=scale, ratio=ratio, interpolation=sampling, antialias=True)
        case RandomCrop(size=size, padding=padding, mode=mode):
            fill = grey_value(transform.fill, form)
            return v2.RandomCrop(size, padding=padding or None, pad_if_needed=True, fill=fill, padding_mode=mode)
        case RandomHorizontalFlip():
            return v2.RandomHorizontalFlip(transform.p)
        case RandomVerticalFlip():
            return v2.RandomVerticalFlip(transform.p)
        case RandomRotation(degrees=degrees):
            fill = grey_value(transform.fill, form)
            return v2.RandomRotation(degrees, interpolation=_warping(transform.interpolation), fill=fill)
        case RandomAffine():
            return v2.RandomAffine(
                transform.degrees,
                translate=transform.translate,
                scale=transform.scale,
                shear=transform.shear,
                interpolation=_warping(transform.interpolation),
                fill=grey_value(transform.fill, form),
            )
        case RandomPerspective(distortion_scale=distortion, p=p):
            fill = grey_value(transform.fill, form)
            return v2.RandomPerspective(distortion, p, interpolation=_warping(transform.interpolation), fill=fill)
        case _:
            assert_never(transform)


def _colour(transform: ColourTransform, form: InputFormat) -> Any:  # noqa: ANN401, PLR0911 - a table
    match transform:
        case ColorJitter():
            return v2.ColorJitter(transform.brightness, transform.contrast, transform.saturation, transform.hue)
        case RandomGrayscale():
            return v2.RandomGrayscale(transform.p)
        case RandomSolarize():
            return v2.RandomSolarize(grey_value(transform.threshold, form), transform.p)
        case RandomPosterize():
            return v2.RandomPosterize(transform.bits, transform.p)
        case RandomEqualize():
            return v2.RandomEqualize(transform.p)
        case RandomInvert():
            return v2.RandomInvert(transform.p)
        case GaussianBlur():
            return v2.GaussianBlur(transform.kernel_size, transform.sigma)
        case RandomErasing():
            value = grey_value(transform.value, form)
            return v2.RandomErasing(transform.p, transform.scale, transform.ratio, value)
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
