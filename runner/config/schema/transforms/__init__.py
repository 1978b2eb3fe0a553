"""Rules of the entries in `data.train_transforms` and `data.eval_transforms`.

A list in YAML is replaced as a whole, never merged, so here alone defaults stand in the schema. Each entry is a
transform of torchvision.transforms.v2, whose names and meanings they share.
"""

from __future__ import annotations

from typing import Annotated, get_args

from pydantic import Field

from runner.config.schema.transforms.augmentation import (
    AugMix,
    AutoAugment,
    ColorJitter,
    GaussianBlur,
    RandAugment,
    RandomEqualize,
    RandomErasing,
    RandomGrayscale,
    RandomInvert,
    RandomPosterize,
    RandomSolarize,
    TrivialAugment,
)
from runner.config.schema.transforms.fixed import CenterCrop, Grayscale, Normalize, NormalizeEntry, Pad, Resize
from runner.config.schema.transforms.geometric import (
    RandomAffine,
    RandomCrop,
    RandomHorizontalFlip,
    RandomPerspective,
    RandomResizedCrop,
    RandomRotation,
    RandomVerticalFlip,
)
from runner.config.schema.transforms.values import Interpolation, PaddingMode, Size, WarpInterpolation

FixedTransform = Resize | CenterCrop | Pad | Grayscale | NormalizeEntry
"""They treat an image always the same."""
GeometricTransform = (
    RandomResizedCrop
    | RandomCrop
    | RandomHorizontalFlip
    | RandomVerticalFlip
    | RandomRotation
    | RandomAffine
    | RandomPerspective
)
"""They move pixels, drawn anew each epoch."""
ColourTransform = (
    ColorJitter
    | RandomGrayscale
    | RandomSolarize
    | RandomPosterize
    | RandomEqualize
    | RandomInvert
    | GaussianBlur
    | RandomErasing
)
"""They change values of pixels, drawn anew each epoch."""
PolicyTransform = AutoAugment | RandAugment | TrivialAugment | AugMix
"""They draw from a set of other transforms, anew each epoch."""
Transform = Annotated[
    FixedTransform | GeometricTransform | ColourTransform | PolicyTransform, Field(discriminator="name")
]

FIXED_NAMES = tuple(str(get_args(entry.model_fields["name"].annotation)[0]) for entry in get_args(FixedTransform))
RANDOM_NAMES = frozenset(
    str(get_args(entry.model_fields["name"].annotation)[0])
    for kind in (GeometricTransform, ColourTransform, PolicyTransform)
    for entry in get_args(kind)
)

__all__ = [
    "FIXED_NAMES",
    "RANDOM_NAMES",
    "AugMix",
    "AutoAugment",
    "CenterCrop",
    "ColorJitter",
    "ColourTransform",
    "FixedTransform",
    "GaussianBlur",
    "GeometricTransform",
    "Grayscale",
    "Interpolation",
    "Normalize",
    "NormalizeEntry",
    "Pad",
    "PaddingMode",
    "PolicyTransform",
    "RandAugment",
    "RandomAffine",
    "RandomCrop",
    "RandomEqualize",
    "RandomErasing",
    "RandomGrayscale",
    "RandomHorizontalFlip",
    "RandomInvert",
    "RandomPerspective",
    "RandomPosterize",
    "RandomResizedCrop",
    "RandomRotation",
    "RandomSolarize",
    "RandomVerticalFlip",
    "Resize",
    "Size",
    "Transform",
    "TrivialAugment",
    "WarpInterpolation",
]
