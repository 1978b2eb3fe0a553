"""Kinds of value that the entries of transform lists share."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, Field

Size = Annotated[int, Field(ge=1, le=8192)]
Padding = Annotated[int, Field(ge=0, le=1024)]
Probability = Annotated[float, Field(ge=0, le=1)]
Grey = Annotated[int, Field(ge=0, le=255)]
Positive = Annotated[float, Field(gt=0)]
Interpolation = Literal["bilinear", "bicubic", "nearest"]
# What torchvision offers where pixels move along no grid.
WarpInterpolation = Literal["bilinear", "nearest"]
PaddingMode = Literal["constant", "edge", "reflect"]


def _ordered(pair: tuple[float, float]) -> tuple[float, float]:
    low, high = pair
    if low > high:
        raise ValueError(f"the smallest value comes first, got [{low}, {high}]")
    return pair


EvaluationSplit = Annotated[float, Field(gt=0, le=1)]
Shares = Annotated[tuple[EvaluationSplit, EvaluationSplit], AfterValidator(_ordered)]
Positives = Annotated[tuple[Positive, Positive], AfterValidator(_ordered)]
Angle = Annotated[float, Field(ge=-180, le=180)]
Angles = Annotated[tuple[Angle, Angle], AfterValidator(_ordered)]
