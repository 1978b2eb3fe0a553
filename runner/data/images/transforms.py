"""From the lists in data.train_transforms and data.eval_transforms to torchvision's transforms."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import assert_never

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image
from torch import Tensor, nn

from runner.config.schema.data import DataConfig
from runner.config.schema.transforms import (
    CenterCrop,
    Interpolation,
    Normalize,
    NormalizeEntry,
    RandomResizedCrop,
    Resize,
    Transform,
)
from runner.data.images.built import built
from runner.data.images.decode import to_rgb
from runner.data.images.reducing_crop import ReducingCrop
from runner.data.images.stored import StoredImage


class Pipeline:
    """Transforms one after another; a :class:`runner.data.loader.prepare.Preparation`."""

    def __init__(self, transforms: Sequence[Transform], *, reduces: bool = False) -> None:
        """See :func:`pipeline_of` and :func:`train_transform`."""
        self._steps = [built(transform) for transform in transforms]
        match tuple(transforms):
            case (RandomResizedCrop(interpolation="bilinear" | "bicubic") as crop, *_):
                drawn_first = ReducingCrop(crop, reduces=reduces)
                self._begin: Callable[[StoredImage], Callable[[], Tensor]] = drawn_first.begin
                num_begun = 1
            case (Resize(interpolation="bilinear" | "bicubic"), *_):
                self._begin, num_begun = partial(_resized, self._steps[0]), 1
            case _:
                self._begin, num_begun = _whole, 0
        self._rest = self._steps[num_begun:]

    def __call__(self, image: Tensor) -> Tensor:
        """From a uint8 image of shape (3, height, width) to another."""
        for step in self._steps:
            image = step(image)
        return image

    def begin(self, stored: StoredImage) -> Callable[[], Tensor]:
        """Decode, and no more than a first crop needs; resize if that comes first, so that little has to be kept."""
        return self._begin(stored)

    def finish(self, image: Tensor) -> Tensor:
        """What is left to do."""
        for step in self._rest:
            image = step(image)
        return image


def _whole(stored: StoredImage) -> Callable[[], Tensor]:
    return lambda: as_tensor(stored.pixels())


def _resized(resize: nn.Module, stored: StoredImage) -> Callable[[], Tensor]:
    return lambda: resize(as_tensor(stored.pixels()))


def train_transform(data: DataConfig) -> Pipeline:
    """What is done to a training image. Draws from torch's global generator of the CPU, and from nothing else."""
    return Pipeline(data.train_transforms, reduces=data.jpeg_reduction == "auto")


def eval_transform(data: DataConfig) -> Pipeline:
    """What is done to an image at evaluation and afterwards."""
    return pipeline_of(data.eval_transforms)


def pipeline_of(transforms: Sequence[Transform]) -> Pipeline:
    """The transforms one after another, on uint8 images of shape (3, height, width), all pixels decoded."""
    return Pipeline(transforms)


def with_normalize(data: DataConfig) -> DataConfig:
    """The config with data.normalize as the end of data.eval_transforms has it, where it stands there."""
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

    Evaluation resizes and crops as the weights' own preset does, scaled to data.image_size; both evaluation and
    training normalise by the weights' mean and std. The training transforms stay.

    Args:
        data: config as composed.
        resize_size: length of the shorter side in pixels to which the preset resizes.
        crop_size: side in pixels of the square that it then cuts out.
        mean: of each channel, for pixels in [0, 1].
        std: of each channel, for pixels in [0, 1].
        interpolation: how the preset resamples.
    """
    resize = Resize(
        name="resize",
        size=data.image_size,
        # A preset that pads instead of cropping (crop_size > resize_size) has no fraction to keep.
        crop_fraction=min(1.0, crop_size / resize_size),
        interpolation=interpolation,
    )
    crop = CenterCrop(name="center_crop", size=data.image_size)
    red, green, blue = mean
    red_std, green_std, blue_std = std
    normalize = Normalize(mean=(red, green, blue), std=(red_std, green_std, blue_std))
    return data.model_copy(update={"eval_transforms": (resize, crop), "normalize": normalize})


class Normalizer(nn.Module):
    """(pixel / 255 − mean) / std per channel, where the images are: on the device, for a whole batch at once.

    The same operations in the same order as torchvision's `to_dtype(scale=True)` and `normalize`, so the same bits;
    but mean and std are kept on the device, where torchvision copies them there at each call and waits for it.
    """

    mean: Tensor
    std: Tensor

    def __init__(self, normalize: Normalize) -> None:
        super().__init__()
        # Not part of the weights: the package states them in model.json.
        self.register_buffer("mean", torch.tensor(normalize.mean).view(3, 1, 1), persistent=False)
        self.register_buffer("std", torch.tensor(normalize.std).view(3, 1, 1), persistent=False)

    def forward(self, images: Tensor) -> Tensor:
        """Normalise uint8 images of shape (…, 3, height, width); float32 of the same shape and memory format."""
        return images.to(torch.float32).mul_(1 / 255).sub_(self.mean).div_(self.std)


class PackagedTransform:
    """Everything between an image and a trained model's input: the same bits as at evaluation."""

    def __init__(self, transforms: Sequence[Transform], normalize: Normalize) -> None:
        self._pipeline = pipeline_of(transforms)
        self._normalizer = Normalizer(normalize)

    def __call__(self, image: Image.Image | npt.NDArray[np.generic] | Tensor) -> Tensor:
        """Prepare one image.

        Args:
            image: a Pillow image of any mode; an array as Image.fromarray takes it, such as uint8 of shape
                (height, width) or (height, width, 3 or 4); or a uint8 tensor of shape (1 or 3, height, width).

        Returns:
            float32 of shape (3, image size, image size); stack them to a batch.

        Raises:
            TypeError: the array or tensor is of another shape or type.
            ValueError: the pixels have no agreed meaning; see :mod:`runner.data.images.decode`.
        """
        normalized: Tensor = self._normalizer(self._pipeline(_as_pixels(image)))
        return normalized.contiguous()


def as_tensor(pixels: npt.NDArray[np.uint8]) -> Tensor:
    """Pixels of shape (height, width, 3) as a tensor of shape (3, height, width); shares the memory."""
    return torch.from_numpy(pixels).permute(2, 0, 1)


def _as_pixels(image: Image.Image | npt.NDArray[np.generic] | Tensor) -> Tensor:
    match image:
        case Image.Image():
            return as_tensor(to_rgb(image))
        case np.ndarray():
            return as_tensor(to_rgb(Image.fromarray(image)))
        case Tensor():
            if image.dtype != torch.uint8 or image.ndim != 3 or image.shape[0] not in (1, 3):
                raise TypeError(
                    f"expected a uint8 tensor of shape (1 or 3, height, width), got {image.dtype} of shape "
                    f"{tuple(image.shape)}"
                )
            return image.expand(3, -1, -1)
        case _:
            assert_never(image)
