"""Rules of the entries in `data.train_transforms` and `data.eval_transforms`.

Lists in YAML are replaced as a whole, never merged, so that the defaults of their entries are in the schema. Each entry
is a transform of torchvision.transforms.v2 with the same name and meaning.
"""

from __future__ import annotations

from typing import Annotated, get_args

from pydantic import Field

from runner.config.schema.transforms.augmentation import (
    AugMix as AugMix,
)
from runner.config.schema.transforms.augmentation import (
    AutoAugment as AutoAugment,
)
from runner.config.schema.transforms.augmentation import (
    ColorJitter as ColorJitter,
)
from runner.config.schema.transforms.augmentation import (
    GaussianBlur as GaussianBlur,
)
from runner.config.schema.transforms.augmentation import (
    RandAugment as RandAugment,
)
from runner.config.schema.transforms.augmentation import (
    RandomEqualize as RandomEqualize,
)
from runner.config.schema.transforms.augmentation import (
    RandomErasing as RandomErasing,
)
from runner.config.schema.transforms.augmentation import (
    RandomGrayscale as RandomGrayscale,
)
from runner.config.schema.transforms.augmentation import (
    RandomInvert as RandomInvert,
)
from runner.config.schema.transforms.augmentation import (
    RandomPosterize as RandomPosterize,
)
from runner.config.schema.transforms.augmentation import (
    RandomSolarize as RandomSolarize,
)
from runner.config.schema.transforms.augmentation import (
    TrivialAugment as TrivialAugment,
)
from runner.config.schema.transforms.fixed import (
    CenterCrop as CenterCrop,
)
from runner.config.schema.transforms.fixed import (
    CustomTransform as CustomTransform,
)
from runner.config.schema.transforms.fixed import (
    Grayscale as Grayscale,
)
from runner.config.schema.transforms.fixed import (
    Grey as Grey,
)
from runner.config.schema.transforms.fixed import (
    ImageSize as ImageSize,
)
from runner.config.schema.transforms.fixed import (
    Interpolation as Interpolation,
)
from runner.config.schema.transforms.fixed import (
    Normalize as Normalize,
)
from runner.config.schema.transforms.fixed import (
    NormalizeEntry as NormalizeEntry,
)
from runner.config.schema.transforms.fixed import (
    Pad as Pad,
)
from runner.config.schema.transforms.fixed import (
    PaddingMode as PaddingMode,
)
from runner.config.schema.transforms.fixed import (
    Resize as Resize,
)
from runner.config.schema.transforms.fixed import (
    Size as Size,
)
from runner.config.schema.transforms.fixed import (
    WarpInterpolation as WarpInterpolation,
)
from runner.config.schema.transforms.fixed import (
    height_and_width as height_and_width,
)
from runner.config.schema.transforms.geometric import (
    RandomAffine as RandomAffine,
)
from runner.config.schema.transforms.geometric import (
    RandomCrop as RandomCrop,
)
from runner.config.schema.transforms.geometric import (
    RandomHorizontalFlip as RandomHorizontalFlip,
)
from runner.config.schema.transforms.geometric import (
    RandomPerspective as RandomPerspective,
)
from runner.config.schema.transforms.geometric import (
    RandomResizedCrop as RandomResizedCrop,
)
from runner.config.schema.transforms.geometric import (
    RandomRotation as RandomRotation,
)
from runner.config.schema.transforms.geometric import (
    RandomVerticalFlip as RandomVerticalFlip,
)

FixedTransform = Resize | CenterCrop | Pad | Grayscale | NormalizeEntry | CustomTransform
"""Deterministic transforms; a user's own is taken for one."""
GeometricTransform = (
    RandomResizedCrop
    | RandomCrop
    | RandomHorizontalFlip
    | RandomVerticalFlip
    | RandomRotation
    | RandomAffine
    | RandomPerspective
)
"""Random transforms that move pixels, drawn anew each epoch."""
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
"""Random transforms that change values of pixels, drawn anew each epoch."""
PolicyTransform = AutoAugment | RandAugment | TrivialAugment | AugMix
"""Published policies that draw from a set of other transforms, anew each epoch."""
# torchvision's take 1 or 3 channels.
NEEDS_COLOURS = frozenset(
    {
        "grayscale",
        "color_jitter",
        "random_grayscale",
        "auto_augment",
        "rand_augment",
        "trivial_augment",
        "augmix",
    }
)
Transform = Annotated[
    FixedTransform | GeometricTransform | ColourTransform | PolicyTransform, Field(discriminator="name")
]

FIXED_NAMES = tuple(str(get_args(entry.model_fields["name"].annotation)[0]) for entry in get_args(FixedTransform))
RANDOM_NAMES = frozenset(
    str(get_args(entry.model_fields["name"].annotation)[0])
    for kind in (GeometricTransform, ColourTransform, PolicyTransform)
    for entry in get_args(kind)
)
