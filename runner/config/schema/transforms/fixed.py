"""Rules of deterministic transforms, and the types of values that all transforms share."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, model_validator

from runner.config.schema.base import ConfigSection

Size = Annotated[int, Field(ge=1, le=8192)]
# The side of a square, or height and width.
ImageSize = Size | tuple[Size, Size]
Padding = Annotated[int, Field(ge=0, le=1024)]
Probability = Annotated[float, Field(ge=0, le=1)]
Grey = Annotated[int, Field(ge=0, le=255)]
Positive = Annotated[float, Field(gt=0)]
Interpolation = Literal["bilinear", "bicubic", "nearest"]
# What torchvision offers for rotations, affine and perspective transforms.
WarpInterpolation = Literal["bilinear", "nearest"]
PaddingMode = Literal["constant", "edge", "reflect"]
Share = Annotated[float, Field(gt=0, le=1)]
Angle = Annotated[float, Field(ge=-180, le=180)]


class Resize(ConfigSection):
    """Scale the image, in the way of data.resize: with crop so that it just covers a size; the aspect ratio stays."""

    name: Literal["resize"]
    """Which transform this is."""
    size: ImageSize
    """In pixels: length of the shorter side (with letterbox and squash the side of a square), or [height, width]."""
    crop_fraction: Annotated[float, Field(gt=0, le=1)] = 1.0
    """With data.resize=crop the image covers size / crop_fraction, so that a later crop of `size` keeps this fraction
    of each side."""
    interpolation: Interpolation = "bilinear"
    """How pixels are resampled (antialiased, nearest apart)."""


class CenterCrop(ConfigSection):
    """Cut a square or rectangle out of the middle; smaller images are padded with black."""

    name: Literal["center_crop"]
    """Which transform this is."""
    size: ImageSize
    """In pixels: side of the square, or [height, width]."""


class Pad(ConfigSection):
    """Add pixels around the image."""

    name: Literal["pad"]
    """Which transform this is."""
    padding: Annotated[Padding, Field(ge=1)] | tuple[Padding, Padding, Padding, Padding]
    """Pixels added: on each side, or [left, top, right, bottom]."""
    mode: PaddingMode = "constant"
    """What they show: one grey, the nearest edge, or the image mirrored (which must be larger than the padding)."""
    fill: Grey = 0
    """The grey of mode constant, 0 (black) to 255 (white)."""

    @model_validator(mode="after")
    def _acts(self) -> Pad:
        if self.padding == (0, 0, 0, 0):
            raise ValueError("does nothing: at least one side of padding must be above 0")
        return self


class Grayscale(ConfigSection):
    """Take the colours out (ITU-R 601-2 luma); with data.channels=3 three equal channels stay."""

    name: Literal["grayscale"]
    """Which transform this is."""


class CustomTransform(ConfigSection):
    """The user's own transform, offered by an installed package under the entry point group `runner.transforms`. It
    keeps the image's size and type, and draws from torch's CPU generator only; for evaluation it must draw nothing."""

    name: Literal["custom"]
    """Which transform this is."""
    part: str
    """The name of the entry point: a function of its settings that returns a function of an image."""
    arguments: dict[str, Any] = Field(default_factory=dict)
    """Its settings, which the package declares; `--help transforms` lists those of installed packages."""


class Normalize(ConfigSection):
    """(value − mean) / std for each of data.channels, for values in [0, 1]: pixel / 255, or pixel / 65535 with
    data.bit_depth=16; done on the device."""

    mean: tuple[float, ...]
    """Mean of each channel, for pixels in [0, 1]."""
    std: tuple[Positive, ...]
    """Standard deviation of each channel, for pixels in [0, 1]."""


class NormalizeEntry(Normalize):
    """Another way to write data.normalize, over which it goes: last in both lists, with the same values."""

    name: Literal["normalize"]
    """Which transform this is."""


def height_and_width(size: int | tuple[int, int]) -> tuple[int, int]:
    """The height and the width of an image size."""
    return (size, size) if isinstance(size, int) else size


def _ordered(pair: tuple[float, float]) -> tuple[float, float]:
    low, high = pair
    if low > high:
        raise ValueError(f"the smallest value comes first, got [{low}, {high}]")
    return pair


Shares = Annotated[tuple[Share, Share], AfterValidator(_ordered)]
Positives = Annotated[tuple[Positive, Positive], AfterValidator(_ordered)]
Angles = Annotated[tuple[Angle, Angle], AfterValidator(_ordered)]
