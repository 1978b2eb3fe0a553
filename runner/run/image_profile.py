"""What the images of an evaluation looked like, as counts: the entry `profile` of metrics.json, and the reference of a
package, with which `drift` and the server compare other images.

It holds neither pixels nor names, and nothing in it depends on the clock or on the number of processes.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Annotated

from pydantic import Field, model_validator

from runner.config.schema.base import ConfigSection

_Count = Annotated[int, Field(ge=0, le=2**53)]
NUMERIC_FEATURES = ("brightness", "width", "height", "aspect_ratio", "confidence")
CLASS_FEATURE = "predicted_class"
FEATURES = (*NUMERIC_FEATURES, CLASS_FEATURE)


class Histogram(ConfigSection):
    """Counts of a number, by bins that hold about a tenth of the images each, and two for what none of them has."""

    edges: Annotated[tuple[float, ...], Field(min_length=2, max_length=1000)]
    """Ascending: the smallest value, the deciles, and the number that follows the largest value; equal ones once."""
    counts: tuple[_Count, ...]
    """Of the values below the first edge (0 here), from each edge to below the next one, and from the last edge on."""

    @model_validator(mode="after")
    def _fits(self) -> Histogram:
        if any(not low < high for low, high in pairwise(self.edges)):
            raise ValueError("its edges do not ascend")
        if len(self.counts) != len(self.edges) + 1:
            raise ValueError(f"{len(self.edges)} edges, but {len(self.counts)} counts")
        return self


class ImageProfile(ConfigSection):
    """Counts over the images of an evaluation that have scores."""

    num_images: Annotated[int, Field(ge=1, le=2**53)]
    brightness: Histogram
    """Mean of all pixels and channels as the model sees them, after the transforms and before normalisation: [0, 1]."""
    width: Histogram
    """Of the decoded image, upright, before the transforms, in pixels."""
    height: Histogram
    """As the width."""
    aspect_ratio: Histogram
    """Width divided by height."""
    confidence: Histogram
    """Probability of the predicted class, in [0, 1]."""
    predicted_class: Annotated[tuple[_Count, ...], Field(min_length=1)]
    """Images predicted as each class, in index order."""

    @model_validator(mode="after")
    def _of_as_many_images(self) -> ImageProfile:
        for name in FEATURES:
            if sum(self.counts_of(name)) != self.num_images:
                raise ValueError(f"num_images = {self.num_images:,}, but {name} counts others")
        return self

    def counts_of(self, feature: str) -> tuple[int, ...]:
        """The counts of a feature, by bin or by class."""
        value = getattr(self, feature)
        counts: tuple[int, ...] = value.counts if isinstance(value, Histogram) else value
        return counts
