"""Rules of random transforms that change values of pixels, and of published policies that draw from many."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from runner.config.schema.base import ConfigSection
from runner.config.schema.transforms.fixed import Grey, Positives, Probability, Shares

_Strength = Annotated[float, Field(ge=0, le=10)]


class ColorJitter(ConfigSection):
    """Change brightness, contrast, saturation and hue by random amounts, in random order."""

    name: Literal["color_jitter"]
    """Which transform this is."""
    brightness: _Strength = 0.4
    """b: the factor is drawn from [max(0, 1 − b), 1 + b]; 0 leaves it out."""
    contrast: _Strength = 0.4
    """c: the factor is drawn from [max(0, 1 − c), 1 + c]; 0 leaves it out."""
    saturation: _Strength = 0.4
    """s: the factor is drawn from [max(0, 1 − s), 1 + s]; 0 leaves it out."""
    hue: Annotated[float, Field(ge=0, le=0.5)] = 0.0
    """h: the hue turns by a share of the circle drawn from [−h, h]; 0 leaves it out."""

    @model_validator(mode="after")
    def _acts(self) -> ColorJitter:
        if not (self.brightness or self.contrast or self.saturation or self.hue):
            raise ValueError("does nothing: one of brightness, contrast, saturation and hue must be above 0")
        return self


class RandomGrayscale(ConfigSection):
    """Take the colours out."""

    name: Literal["random_grayscale"]
    """Which transform this is."""
    p: Probability = 0.1
    """Probability."""


class RandomSolarize(ConfigSection):
    """Invert all values from a threshold on."""

    name: Literal["random_solarize"]
    """Which transform this is."""
    threshold: Grey = 128
    """The smallest value that is inverted."""
    p: Probability = 0.5
    """Probability."""


class RandomPosterize(ConfigSection):
    """Keep only the highest bits of each value."""

    name: Literal["random_posterize"]
    """Which transform this is."""
    bits: Annotated[int, Field(ge=1, le=7)] = 4
    """How many of 8."""
    p: Probability = 0.5
    """Probability."""


class RandomEqualize(ConfigSection):
    """Spread the values of each channel evenly over 0 to 255."""

    name: Literal["random_equalize"]
    """Which transform this is."""
    p: Probability = 0.5
    """Probability."""


class RandomInvert(ConfigSection):
    """Turn the image into its negative."""

    name: Literal["random_invert"]
    """Which transform this is."""
    p: Probability = 0.5
    """Probability."""


class GaussianBlur(ConfigSection):
    """Blur by a Gaussian of random width."""

    name: Literal["gaussian_blur"]
    """Which transform this is."""
    kernel_size: Annotated[int, Field(ge=3, le=255)] = 5
    """Side of the kernel in pixels; odd."""
    sigma: Positives = (0.1, 2.0)
    """Smallest and largest standard deviation in pixels."""

    @model_validator(mode="after")
    def _has_a_middle(self) -> GaussianBlur:
        if self.kernel_size % 2 == 0:
            raise ValueError(f"kernel_size must be odd, so that the kernel has a middle, not {self.kernel_size}")
        return self


class RandomErasing(ConfigSection):
    """Cover a random rectangle (Zhong et al. 2017, arXiv:1708.04896)."""

    name: Literal["random_erasing"]
    """Which transform this is."""
    p: Probability = 0.5
    """Probability."""
    scale: Shares = (0.02, 0.33)
    """Smallest and largest share of the image's area."""
    ratio: Positives = (0.3, 3.3)
    """Smallest and largest height / width."""
    value: Grey = 0
    """The grey that covers it, 0 (black) to 255 (white)."""


class AutoAugment(ConfigSection):
    """A policy that was learnt (Cubuk et al. 2018, arXiv:1805.09501)."""

    name: Literal["auto_augment"]
    """Which transform this is."""
    policy: Literal["imagenet", "cifar10", "svhn"] = "imagenet"
    """The data set on which it was learnt."""


class RandAugment(ConfigSection):
    """Several random operations of one strength (Cubuk et al. 2019, arXiv:1909.13719)."""

    name: Literal["rand_augment"]
    """Which transform this is."""
    num_ops: Annotated[int, Field(ge=1, le=14)] = 2
    """Operations per image."""
    magnitude: Annotated[int, Field(ge=0, le=30)] = 9
    """Their strength."""


class TrivialAugment(ConfigSection):
    """One random operation of random strength (Müller and Hutter 2021, arXiv:2103.10158)."""

    name: Literal["trivial_augment"]
    """Which transform this is."""


class AugMix(ConfigSection):
    """A mixture of chains of random operations (Hendrycks et al. 2019, arXiv:1912.02781)."""

    name: Literal["augmix"]
    """Which transform this is."""
    severity: Annotated[int, Field(ge=1, le=10)] = 3
    """Strength of the operations."""
    mixture_width: Annotated[int, Field(ge=1, le=10)] = 3
    """Chains per image."""
    chain_depth: Annotated[int, Field(ge=1, le=10)] | None = None
    """Operations per chain; null draws 1 to 3."""
    alpha: Annotated[float, Field(gt=0, le=100)] = 1.0
    """Of the Dirichlet and Beta distributions from which the shares of the mixture are drawn."""
