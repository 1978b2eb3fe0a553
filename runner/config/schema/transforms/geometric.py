"""Rules of random transforms that move pixels."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from runner.config.schema.base import ConfigSection
from runner.config.schema.transforms.fixed import (
    Angles,
    Grey,
    ImageSize,
    Interpolation,
    Padding,
    PaddingMode,
    Positives,
    Probability,
    Shares,
    WarpInterpolation,
)

_Degrees = Annotated[float, Field(ge=0, le=180)]
_Share = Annotated[float, Field(ge=0, le=1)]


class RandomResizedCrop(ConfigSection):
    """Cut a random rectangle and scale it to one size (Szegedy et al. 2015)."""

    name: Literal["random_resized_crop"]
    """Which transform this is."""
    size: ImageSize
    """The resulting size in pixels: side of a square, or [height, width]."""
    scale: Shares = (0.08, 1.0)
    """Smallest and largest share of the image's area."""
    ratio: Positives = (0.75, 4 / 3)
    """Smallest and largest width / height."""
    interpolation: Interpolation = "bilinear"
    """How pixels are resampled (antialiased, nearest apart)."""


class RandomCrop(ConfigSection):
    """Pad, then cut a square or rectangle at a random place; smaller images are padded further."""

    name: Literal["random_crop"]
    """Which transform this is."""
    size: ImageSize
    """In pixels: side of the square, or [height, width]."""
    padding: Padding = 0
    """Pixels added on each side beforehand."""
    mode: PaddingMode = "constant"
    """What they show: one grey, the nearest edge, or the image mirrored (which must be larger than the padding)."""
    fill: Grey = 0
    """The grey of mode constant, 0 (black) to 255 (white)."""


class RandomHorizontalFlip(ConfigSection):
    """Mirror left and right."""

    name: Literal["random_horizontal_flip"]
    """Which transform this is."""
    p: Probability = 0.5
    """Probability."""


class RandomVerticalFlip(ConfigSection):
    """Mirror top and bottom."""

    name: Literal["random_vertical_flip"]
    """Which transform this is."""
    p: Probability = 0.5
    """Probability."""


class RandomRotation(ConfigSection):
    """Turn about the middle by a random angle; the size stays."""

    name: Literal["random_rotation"]
    """Which transform this is."""
    degrees: Annotated[float, Field(gt=0, le=180)]
    """Largest angle in either direction."""
    interpolation: WarpInterpolation = "bilinear"
    """How pixels are resampled."""
    fill: Grey = 0
    """Grey of what comes into view, 0 (black) to 255 (white)."""


class RandomAffine(ConfigSection):
    """Turn, move, scale and shear about the middle, each by a random amount; the size stays."""

    name: Literal["random_affine"]
    """Which transform this is."""
    degrees: _Degrees = 0.0
    """Largest angle in either direction."""
    translate: tuple[_Share, _Share] = (0.0, 0.0)
    """Largest move as a share of width and height, in either direction."""
    scale: Positives = (1.0, 1.0)
    """Smallest and largest scale."""
    shear: Angles = (0.0, 0.0)
    """Smallest and largest angle in degrees by which horizontal lines lean."""
    interpolation: WarpInterpolation = "bilinear"
    """How pixels are resampled."""
    fill: Grey = 0
    """Grey of what comes into view, 0 (black) to 255 (white)."""

    @model_validator(mode="after")
    def _acts(self) -> RandomAffine:
        if (self.degrees, *self.translate, *self.scale, *self.shear) == (0, 0, 0, 1, 1, 0, 0):
            raise ValueError("does nothing: give at least one of degrees, translate, scale and shear")
        return self


class RandomPerspective(ConfigSection):
    """Look at the image from a random side; the size stays."""

    name: Literal["random_perspective"]
    """Which transform this is."""
    distortion_scale: Annotated[float, Field(gt=0, le=1)] = 0.5
    """How far corners move at most, as a share of half of each side."""
    p: Probability = 0.5
    """Probability."""
    interpolation: WarpInterpolation = "bilinear"
    """How pixels are resampled."""
    fill: Grey = 0
    """Grey of what comes into view, 0 (black) to 255 (white)."""
