"""Rules of the entries in `data.train_transforms` and `data.eval_transforms`.

A list in YAML is replaced as a whole, never merged, so here alone defaults stand in the schema.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from runner.schema.base import Section

Size = Annotated[int, Field(ge=1, le=8192)]
Probability = Annotated[float, Field(ge=0, le=1)]
Interpolation = Literal["bilinear", "bicubic", "nearest"]


class Resize(Section):
    """Scale the image so that its shorter side has a given length; the aspect ratio stays."""

    name: Literal["resize"]
    """Which transform this is."""
    size: Size
    """Length of the shorter side in pixels, before crop_fraction."""
    crop_fraction: Annotated[float, Field(gt=0, le=1)] = 1.0
    """The shorter side becomes size / crop_fraction, so that a later crop of `size` keeps this fraction of it."""
    interpolation: Interpolation = "bilinear"
    """How pixels are resampled (antialiased, nearest apart)."""


class CenterCrop(Section):
    """Cut a square out of the middle; smaller images are padded with black."""

    name: Literal["center_crop"]
    """Which transform this is."""
    size: Size
    """Side of the square in pixels."""


class RandomResizedCrop(Section):
    """Cut a random rectangle and scale it to a square (Szegedy et al. 2015)."""

    name: Literal["random_resized_crop"]
    """Which transform this is."""
    size: Size
    """Side of the resulting square in pixels."""
    scale: tuple[Annotated[float, Field(gt=0, le=1)], Annotated[float, Field(gt=0, le=1)]] = (0.08, 1.0)
    """Smallest and largest share of the image's area."""
    ratio: tuple[Annotated[float, Field(gt=0)], Annotated[float, Field(gt=0)]] = (0.75, 4 / 3)
    """Smallest and largest width / height."""
    interpolation: Interpolation = "bilinear"
    """How pixels are resampled (antialiased, nearest apart)."""

    @model_validator(mode="after")
    def _ordered(self) -> RandomResizedCrop:
        for key in ("scale", "ratio"):
            low, high = getattr(self, key)
            if low > high:
                raise ValueError(f"{key}: the smallest value comes first, got [{low}, {high}]")
        return self


class RandomCrop(Section):
    """Pad with black, then cut a square at a random place; smaller images are padded further."""

    name: Literal["random_crop"]
    """Which transform this is."""
    size: Size
    """Side of the square in pixels."""
    padding: Annotated[int, Field(ge=0, le=1024)] = 0
    """Pixels added on each side beforehand."""


class RandomHorizontalFlip(Section):
    """Mirror left and right."""

    name: Literal["random_horizontal_flip"]
    """Which transform this is."""
    p: Probability = 0.5
    """Probability."""


Transform = Annotated[
    Resize | CenterCrop | RandomResizedCrop | RandomCrop | RandomHorizontalFlip, Field(discriminator="name")
]


class Normalize(Section):
    """(pixel / 255 − mean) / std for each of the channels red, green, blue; done on the device."""

    mean: tuple[float, float, float]
    """Mean of each channel, for pixels in [0, 1]."""
    std: tuple[Annotated[float, Field(gt=0)], Annotated[float, Field(gt=0)], Annotated[float, Field(gt=0)]]
    """Standard deviation of each channel, for pixels in [0, 1]."""
