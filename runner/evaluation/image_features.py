"""Numbers by which sets of images are compared without keeping an image, and their counts. Imports no torch."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from runner.run.image_profile import CLASS_FEATURE, FEATURES, NUMERIC_FEATURES, Histogram, ImageProfile

Numbers = npt.NDArray[np.float64] | npt.NDArray[np.int64] | npt.NDArray[np.int32]
_NUM_BINS = 10


@dataclass(frozen=True, kw_only=True)
class ImageFeatures:
    """Features of images that have scores, shape (N,) each; see :class:`runner.run.image_profile.ImageProfile`."""

    brightness: Numbers
    width: Numbers
    height: Numbers
    confidence: Numbers
    predicted: Numbers
    """Class indices."""

    @property
    def aspect_ratio(self) -> npt.NDArray[np.float64]:
        """Width divided by height."""
        ratio: npt.NDArray[np.float64] = self.width / np.maximum(self.height, 1)
        return ratio


def profile_of(features: ImageFeatures, num_classes: int) -> ImageProfile:
    """The profile of N ≥ 1 images, with bins that suit them."""
    found = {name: _histogram(getattr(features, name)) for name in NUMERIC_FEATURES}
    predicted = np.bincount(features.predicted, minlength=num_classes)
    return ImageProfile(num_images=len(features.predicted), predicted_class=tuple(predicted.tolist()), **found)


class FeatureCounter:
    """Counts the features of images by the bins of a reference, batch after batch."""

    def __init__(self, reference: ImageProfile) -> None:
        self.num_images = 0
        self.counts = {name: np.zeros(len(reference.counts_of(name)), np.int64) for name in FEATURES}
        """By feature, the images of each bin or class."""
        self._edges = {name: np.array(getattr(reference, name).edges) for name in NUMERIC_FEATURES}

    def add(self, features: ImageFeatures) -> None:
        """Count images, of which there may be none."""
        self.num_images += len(features.predicted)
        for name, edges in self._edges.items():
            self.counts[name] += _counts(getattr(features, name), edges)
        self.counts[CLASS_FEATURE] += np.bincount(features.predicted, minlength=len(self.counts[CLASS_FEATURE]))


def _histogram(values: Numbers) -> Histogram:
    # Of equal numbers, such as the widths of images of one size, several deciles are the same.
    deciles = np.quantile(values, np.arange(_NUM_BINS) / _NUM_BINS, method="higher")
    edges = np.unique([*deciles.tolist(), np.nextafter(float(values.max()), np.inf)])
    return Histogram(edges=tuple(edges.tolist()), counts=tuple(_counts(values, edges).tolist()))


def _counts(values: Numbers, edges: npt.NDArray[np.float64]) -> npt.NDArray[np.int64]:
    return np.bincount(np.searchsorted(edges, values, side="right"), minlength=len(edges) + 1)
