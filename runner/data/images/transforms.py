"""Builds the pipelines of data.train_transforms and data.eval_transforms, and the normalisation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import accumulate
from typing import Any, assert_never

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image
from torch import Tensor, nn
from torchvision.transforms.v2 import functional

from runner.config.schema.data import DataConfig
from runner.config.schema.transforms import (
    CenterCrop,
    Interpolation,
    Normalize,
    NormalizeEntry,
    RandomResizedCrop,
    Resize,
    Transform,
    height_and_width,
)
from runner.data.images.build_transform import build_transform
from runner.data.images.decode import to_pixels
from runner.data.images.geometry import scaled_transforms
from runner.data.images.stored import RGB, InputFormat, Pixels, StoredImage

_REDUCTIONS = (8, 4, 2)
# A reduced crop has at least this many times the result's pixels along each side, like Pillow's `reducing_gap=2.0`, of
# which Pillow says that it is nearly indistinguishable from resizing all pixels.
_GAP = 2


class Pipeline:
    """A sequence of transforms; implements :class:`runner.data.loader.prepare.Preparation`."""

    def __init__(self, transforms: Sequence[Transform], form: InputFormat = RGB, *, reduces: bool = False) -> None:
        """See :func:`pipeline_of` and :func:`train_transform`."""
        self._steps = [build_transform(transform, form) for transform in transforms]
        match tuple(transforms):
            case (RandomResizedCrop(interpolation="bilinear" | "bicubic") as crop, *_):
                drawn_first = ReducingCrop(crop, reduces=reduces)
                self._begin: Callable[[StoredImage], Callable[[], Tensor]] = drawn_first.begin
                num_begun = 1
            case (Resize(interpolation="bilinear" | "bicubic"), *_):
                self._begin, num_begun = partial(_resized, self._steps[0]), 1
            case _:
                self._begin, num_begun = (lambda stored: lambda: as_tensor(stored.pixels())), 0
        self._rest = self._steps[num_begun:]

    def __call__(self, image: Tensor) -> Tensor:
        """Apply all transforms to an image of shape (channels, height, width), as :func:`as_tensor` gives it."""
        for step in self._steps:
            image = step(image)
        return image

    def begin(self, stored: StoredImage) -> Callable[[], Tensor]:
        """Begin to decode; a first RandomResizedCrop or Resize is part of it, so that the results are small."""
        return self._begin(stored)

    def finish(self, image: Tensor) -> Tensor:
        """Apply the other transforms."""
        for step in self._rest:
            image = step(image)
        return image


def _resized(resize: nn.Module, stored: StoredImage) -> Callable[[], Tensor]:
    return lambda: resize(as_tensor(stored.pixels()))


def train_transform(data: DataConfig) -> Pipeline:
    """The pipeline for training images. Draws from torch's global CPU generator only."""
    return Pipeline(data.train_transforms, InputFormat.of(data), reduces=data.jpeg_reduction == "auto")


def early_transforms(data: DataConfig) -> tuple[tuple[int, Pipeline], ...]:
    """The pipelines of the epochs with smaller images, each with the epoch (from 0) that no longer has it."""
    ends = accumulate(entry.epochs for entry in data.progressive_resizing)
    pipelines = [
        train_transform(data.model_copy(update={"train_transforms": scaled_transforms(data, entry.image_size)}))
        for entry in data.progressive_resizing
    ]
    return tuple(zip(ends, pipelines, strict=True))


def eval_transform(data: DataConfig) -> Pipeline:
    """The pipeline for evaluation and for the packaged model."""
    return pipeline_of(data.eval_transforms, InputFormat.of(data))


def pipeline_of(transforms: Sequence[Transform], form: InputFormat = RGB) -> Pipeline:
    """A pipeline that decodes images at full size."""
    return Pipeline(transforms, form)


def with_normalize(data: DataConfig) -> DataConfig:
    """The config with data.normalize taken from a `normalize` entry at the end of data.eval_transforms, if any."""
    match data.eval_transforms[-1:]:
        case (NormalizeEntry(mean=mean, std=std),):
            return data.model_copy(update={"normalize": Normalize(mean=mean, std=std)})
        case _:
            return data


def follow_weights(
    data: DataConfig,
    *,
    resize_size: int,
    crop_size: int,
    mean: Sequence[float],
    std: Sequence[float],
    interpolation: Interpolation,
) -> DataConfig:
    """The config with the preprocessing that pretrained weights were trained with.

    Evaluation resizes and crops like the weights' own preset, scaled to data.eval_image_size; evaluation and training
    normalise with the weights' mean and std, which are those of RGB: of other channels data.normalize stays. The
    training transforms stay the same.

    Args:
        data: config as composed.
        resize_size: length in pixels of the shorter side after the preset's resize.
        crop_size: side in pixels of the preset's center crop.
        mean: of each channel, for pixels in [0, 1].
        std: of each channel, for pixels in [0, 1].
        interpolation: of the preset's resize.
    """
    resize = Resize(
        name="resize",
        size=data.eval_image_size,
        # For a preset that pads instead of cropping (crop_size > resize_size) there is no fraction.
        crop_fraction=min(1.0, crop_size / resize_size),
        interpolation=interpolation,
    )
    crop = CenterCrop(name="center_crop", size=data.eval_image_size)
    of_weights = Normalize(mean=tuple(mean), std=tuple(std))
    normalize = of_weights if len(mean) == data.channels else data.normalize
    return data.model_copy(update={"eval_transforms": (resize, crop), "normalize": normalize})


class Normalizer(nn.Module):
    """(value − mean) / std per channel, on the images' device, for a whole batch at once; of uint8 pixel / 255.

    The operations and their order are those of torchvision's `to_dtype(scale=True)` and `normalize`, so the bits are
    the same; but mean and std stay on the device, while torchvision copies them synchronously at each call.
    """

    mean: Tensor
    std: Tensor

    def __init__(self, normalize: Normalize) -> None:
        super().__init__()
        # Not in the state dict: the package has them in model.json.
        self.register_buffer("mean", torch.tensor(normalize.mean).view(-1, 1, 1), persistent=False)
        self.register_buffer("std", torch.tensor(normalize.std).view(-1, 1, 1), persistent=False)

    def forward(self, images: Tensor) -> Tensor:
        """Normalise images of shape (…, channels, height, width); float32 of the same shape and memory format.

        Args:
            images: uint8, or float32 with values in [0, 1].
        """
        if images.dtype == torch.float32:
            return images.sub(self.mean).div_(self.std)
        return images.to(torch.float32).mul_(1 / 255).sub_(self.mean).div_(self.std)


class PackagedTransform:
    """All preprocessing from an image to the model's input, with the same bits as at evaluation."""

    def __init__(self, transforms: Sequence[Transform], normalize: Normalize, form: InputFormat = RGB) -> None:
        self._form = form
        self._pipeline = pipeline_of(transforms, form)
        self._normalizer = Normalizer(normalize)

    def __call__(self, image: Image.Image | npt.NDArray[np.generic] | Tensor) -> Tensor:
        """Prepare one image.

        Args:
            image: a Pillow image of any mode; an array as Image.fromarray takes it, such as uint8 of shape
                (height, width) or (height, width, 1, 3 or 4), or uint16 of shape (height, width); or a tensor of shape
                (channels, height, width), or (1, height, width) for a model of 3 channels: uint8, or uint16 for a model
                of 16 bits.

        Returns:
            float32 of shape (channels, image height, image width); stack them to a batch.

        Raises:
            TypeError: the array or tensor is of another shape or type.
            ValueError: pixel values are out of range; see :mod:`runner.data.images.decode`.
        """
        normalized: Tensor = self._normalizer(self._pipeline(_as_pixels(image, self._form)))
        return normalized.contiguous()


def as_tensor(pixels: Pixels | npt.NDArray[np.float32]) -> Tensor:
    """Pixels of shape (height, width, channels) as a tensor of shape (channels, height, width).

    uint8 stays so and shares the memory; uint16, on which few of torch's operations work, becomes float32 in [0, 1].
    """
    return _without_uint16(torch.from_numpy(pixels)).permute(2, 0, 1)


def _without_uint16(pixels: Tensor) -> Tensor:
    if pixels.dtype != torch.uint16:
        return pixels
    scaled: Tensor = functional.to_dtype(pixels, torch.float32, scale=True)
    return scaled


def _as_pixels(image: Image.Image | npt.NDArray[np.generic] | Tensor, form: InputFormat) -> Tensor:
    match image:
        case Image.Image():
            return as_tensor(to_pixels(image, form))
        case np.ndarray():
            is_flat = image.ndim == 3 and image.shape[2] == 1
            return as_tensor(to_pixels(Image.fromarray(image[:, :, 0] if is_flat else image), form))
        case Tensor():
            dtype = torch.uint8 if form.bit_depth == 8 else torch.uint16
            channels = (1, 3) if form.channels == 3 else (form.channels,)
            if image.dtype != dtype or image.ndim != 3 or image.shape[0] not in channels:
                raise TypeError(
                    f"expected a {str(dtype).removeprefix('torch.')} tensor of shape "
                    f"({' or '.join(map(str, channels))}, height, width), got {image.dtype} of shape "
                    f"{tuple(image.shape)}"
                )
            return _without_uint16(image).expand(form.channels, -1, -1)
        case _:
            assert_never(image)


class ReducingCrop:
    """torchvision's RandomResizedCrop with the same random numbers, which decodes a JPEG at reduced size if possible.

    At full size the pixels are equal to torchvision's. A crop of a reduced image is aligned to its pixels, so it is up
    to 7 pixels of the full image smaller.
    """

    def __init__(self, transform: RandomResizedCrop, *, reduces: bool) -> None:
        """Without `reduces` images are decoded at full size."""
        self._crop: Any = build_transform(transform)
        self._size = height_and_width(transform.size)
        self._reductions = _REDUCTIONS if reduces else ()

    def begin(self, stored: StoredImage) -> Callable[[], Tensor]:
        """Draw the crop.

        Returns:
            A function that decodes, crops and resizes to shape (channels, *size). It raises InvalidDatasetError if the
            image is damaged.
        """
        # Only the shape of this tensor is used.
        outline = torch.empty((3, stored.height, stored.width), dtype=torch.uint8, device="meta")
        return partial(self._cut, stored, self._crop.make_params([outline]))

    def _cut(self, stored: StoredImage, place: dict[str, int]) -> Tensor:
        reduction = self.reduction(place["height"], place["width"])
        pixels = stored.pixels(reduction)
        if pixels.shape[0] == stored.height:
            reduction = 1
        # A crop that ends between two pixels of the reduced image is made smaller by that part of a pixel.
        top, left = place["top"] // reduction, place["left"] // reduction
        bottom = (place["top"] + place["height"]) // reduction
        right = (place["left"] + place["width"]) // reduction
        # Copied into one piece: resizing is then faster, and its result is laid out as batches are, channels last.
        crop = np.ascontiguousarray(pixels[top:bottom, left:right])
        resized: Tensor = functional.resize(
            as_tensor(crop),
            list(self._size),
            interpolation=self._crop.interpolation,
            antialias=True,
        )
        # Of uint8 torchvision clamps what bicubic resampling overshoots.
        return resized.clamp_(0, 1) if resized.is_floating_point() else resized

    def reduction(self, height: int, width: int) -> int:
        """How many times smaller the image may be decoded, for a crop of so many of its pixels."""
        # How many times the result's pixels the crop has along the side that has fewer of them.
        ratio = min(height / self._size[0], width / self._size[1])
        return next((factor for factor in self._reductions if ratio >= factor * _GAP), 1)
