"""Holds all training images on the compute device, and crops and flips them there by the batch (data.cache=device)."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torchvision.transforms.v2 import functional

from runner.base.errors import DeviceError
from runner.base.keyed_random import random_words_for
from runner.config.schema.transforms import RandomCrop, height_and_width
from runner.data.cache.memory import available_memory, format_bytes
from runner.data.images.batched import BatchedTransforms
from runner.data.loader.batch import BadImage, Batch, Request
from runner.data.source import Labels

# Fraction of the free memory of the device; the rest is for the model.
_USABLE = 0.5


class DeviceImages:
    """Makes the batches of a training split from images on the device.

    Crops and flips are functions of (seed, epoch, image), but use other random numbers than torchvision does for single
    images.
    """

    def __init__(
        self,
        images: Tensor,
        labels: Labels,
        transforms: BatchedTransforms,
        *,
        size: int | tuple[int, int],
        seed: int,
        bad: Iterable[BadImage],
    ) -> None:
        """Keep the images, not a copy.

        Args:
            images: after the fixed transforms and padding, uint8 (of 16 bits float32), shape
                (N, height, width, channels), on the device.
            labels: class indices, shape (N,).
            transforms: the random crop and flips.
            size: data.image_size.
            seed: seed of the experiment.
            bad: images that can't be read; they are skipped.
        """
        self._images = images
        self._labels = torch.from_numpy(labels).to(images.device)
        self._transforms = transforms
        self._height, self._width = height_and_width(size)
        self._seed = seed
        self._bad = {image.image: image for image in bad}

    def make(self, request: Request) -> Batch:
        """Make a batch, whose images and labels are on the device."""
        asked, draws = torch.from_numpy(request.ids), _numbers_of_draws(request)
        bad = tuple(self._bad[image] for image in request.ids.tolist() if image in self._bad) if self._bad else ()
        if bad:
            is_good = ~np.isin(request.ids, list(self._bad))
            ids, draws = torch.from_numpy(request.ids[is_good]), draws[is_good]
        else:
            ids = asked
        device = self._images.device
        plan = torch.from_numpy(np.stack([ids.numpy(), *self._drawn(request.epoch, draws)]))
        # One small asynchronous copy; not on MPS, where the source would have to outlive it.
        plan = plan.pin_memory() if device.type == "cuda" else plan
        chosen, top, left, down, across = plan.to(device, non_blocking=device.type == "cuda")
        rows, columns = _places(self._height, top, down), _places(self._width, left, across)
        images = self._images[chosen[:, None, None], rows[:, :, None], columns[:, None, :]]
        return Batch(
            images=images.permute(0, 3, 1, 2) if len(ids) else images.new_empty((0, images.shape[-1], 0, 0)),
            labels=self._labels[chosen],
            ids=ids,
            asked=asked,
            bad=bad,
        )

    def _drawn(self, epoch: int, draws: npt.NDArray[np.int64]) -> list[npt.NDArray[np.int64]]:
        """Top and left of each crop, and whether it is flipped downwards and across; four of shape (N,)."""
        num_places = {
            "top": self._images.shape[1] - self._height + 1,
            "left": self._images.shape[2] - self._width + 1,
        }

        def upper_half(purpose: str) -> npt.NDArray[np.uint64]:
            return random_words_for(draws, self._seed, purpose, epoch) >> np.uint64(32)

        places = [
            (upper_half(side) * np.uint64(number) >> np.uint64(32)).astype(np.int64)
            for side, number in num_places.items()
        ]
        flips = [
            (upper_half(purpose) < np.uint64(probability * 2**32)).astype(np.int64)
            for purpose, probability in (
                ("vertical flip", self._transforms.vertical_flip),
                ("horizontal flip", self._transforms.horizontal_flip),
            )
        ]
        return places + flips


def _places(length: int, start: Tensor, is_reversed: Tensor) -> Tensor:
    """Rows or columns of each image of a batch, N × length."""
    steps = torch.arange(length, device=start.device)
    return start[:, None] + torch.where(is_reversed[:, None] > 0, length - 1 - steps, steps)


def _numbers_of_draws(request: Request) -> npt.NDArray[np.int64]:
    """A number for each draw of an epoch: the image's, mixed with its position where an image may be drawn twice."""
    if request.first_draw is None:
        return request.ids
    positions = np.arange(request.first_draw, request.first_draw + len(request.ids), dtype=np.int64)
    return random_words_for(positions, "draw").view(np.int64) ^ request.ids


def load_onto(
    device: torch.device, batches: Iterable[Batch], transforms: BatchedTransforms, num_images: int
) -> tuple[Tensor, list[BadImage]]:
    """Copy all images of a split to a device, with the padding of the random crop.

    Args:
        device: the compute device.
        batches: all images in their order, after the fixed transforms.
        transforms: their crop says how to pad.
        num_images: over all batches.

    Returns:
        uint8 (of 16 bits float32), shape (N, height, width, channels), 0 where an image can't be read; and the images
        that can't.

    Raises:
        DeviceError: there is too little memory.
    """
    kept: Tensor | None = None
    bad: list[BadImage] = []
    for batch in batches:
        bad += batch.bad
        if len(batch.ids) == 0:
            continue
        images = _padded(batch.images, transforms.crop).permute(0, 2, 3, 1)
        if kept is None:
            check_device_memory(device, "training images", num_images, images[0].nbytes)
            kept = torch.zeros((num_images, *images.shape[1:]), dtype=images.dtype, device=device)
        kept[batch.ids.to(device)] = images.to(device)
    assert kept is not None, "a split without one readable image is refused before"
    return kept, bad


def _padded(images: Tensor, crop: RandomCrop | None) -> Tensor:
    """The images with the padding that torchvision's RandomCrop adds: N × channels × height × width."""
    if crop is None:
        return images
    padded: Tensor = images
    fill = crop.fill / 255 if images.is_floating_point() else crop.fill
    if crop.padding:
        padded = functional.pad(padded, [crop.padding] * 4, fill=fill, padding_mode=crop.mode)
    height, width = height_and_width(crop.size)
    missing = [max(width - padded.shape[-1], 0), max(height - padded.shape[-2], 0)]
    if any(missing):
        padded = functional.pad(padded, missing * 2, fill=fill, padding_mode=crop.mode)
    return padded


def check_device_memory(device: torch.device, what: str, num_images: int, bytes_per_image: int) -> None:
    """Check that images fit into the memory of a device; `what` names them in the message.

    Raises:
        DeviceError: they take more than half of its free memory.
    """
    free = torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else available_memory()
    needed = num_images * bytes_per_image
    if free is not None and needed > free * _USABLE:
        raise DeviceError(
            f"data.cache=device: the {num_images:,} {what} take {format_bytes(needed)}, more than half of "
            f"what is free on {device} ({format_bytes(free)}); use data.cache=memory or data.cache=none"
        )
