"""Mean and standard deviation of each channel over many images, added up image by image."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt


class PixelSums(NamedTuple):
    """Sums over the pixels of one image, of values in units of `largest`."""

    num_pixels: int
    largest: int
    """The value that counts as 1: 255 for uint8, 1 for floating point."""
    sums: tuple[float, ...]
    """Of the values of each channel; exact integers for uint8."""
    squares: tuple[float, ...]
    """Of their squares."""


def pixel_sums(image: npt.NDArray[np.uint8 | np.float32]) -> PixelSums:
    """The sums of an image of shape (channels, height, width): uint8, or float32 in [0, 1].

    Those of uint8 are exact, those of float32 are added in float64.
    """
    is_uint8 = image.dtype == np.uint8
    values = image.reshape(image.shape[0], -1).astype(np.int64 if is_uint8 else np.float64)
    return PixelSums(
        num_pixels=values.shape[1],
        largest=255 if is_uint8 else 1,
        sums=tuple(values.sum(axis=1).tolist()),
        squares=tuple((values * values).sum(axis=1).tolist()),
    )


@dataclass
class ChannelStatistics:
    """The statistics of the images that were added; their order changes no digit, as fractions are exact."""

    num_images: int = 0
    _num_pixels: int = 0
    _sums: list[Fraction] = field(default_factory=list)
    _squares: list[Fraction] = field(default_factory=list)

    def add(self, image: PixelSums) -> None:
        """Add an image with as many channels as the others."""
        self.num_images += 1
        self._num_pixels += image.num_pixels
        self._sums = _added(self._sums, [Fraction(value) / image.largest for value in image.sums])
        self._squares = _added(self._squares, [Fraction(value) / image.largest**2 for value in image.squares])

    def to_json(self) -> dict[str, Any]:
        """`mean` and `std` of each channel for values in [0, 1], over all pixels alike, and `num_images`.

        std is that of the population, √(Σ(x − mean)² / n), as published for ImageNet and CIFAR.
        """
        assert self._num_pixels, "at least one image"
        means = [value / self._num_pixels for value in self._sums]
        variances = [square / self._num_pixels - mean**2 for square, mean in zip(self._squares, means, strict=True)]
        return {
            "num_images": self.num_images,
            "mean": [float(mean) for mean in means],
            # Sums of float32 images are rounded, so that a variance of 0 may come out below it.
            "std": [math.sqrt(max(float(variance), 0.0)) for variance in variances],
        }


def _added(totals: list[Fraction], values: list[Fraction]) -> list[Fraction]:
    return [total + value for total, value in zip(totals, values, strict=True)] if totals else values
