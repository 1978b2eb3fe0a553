"""Compares counts of images with a package's reference: population stability index and a two-sample test per feature.

A feature has drifted where both say so: the index, which is a size of an effect and says whether a change matters, and
the test, which says that it is no chance. With few images the index is large by chance alone; :attr:`least_images` says
how many it takes. Imports no torch.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from scipy.special import chdtrc, chdtri, kolmogorov

from runner.run.image_profile import CLASS_FEATURE, FEATURES, ImageProfile

Counts = npt.NDArray[np.int64]
Test = Literal["kolmogorov_smirnov", "chi_square"]

MAX_P_VALUE = 0.001
"""Of several features, looked at again and again, some have small p-values by chance."""
_CHANCE = 0.05
_ADDED_IMAGES = 0.5
_LEAST_EXPECTED = 1.0


@dataclass(frozen=True, kw_only=True)
class FeatureDrift:
    """How far one feature has drifted."""

    feature: str
    psi: float
    """Population stability index, ≥ 0."""
    psi_by_chance: float
    """What the index exceeds in one of twenty samples of this size from the same images."""
    test: Test
    statistic: float
    p_value: float
    """Probability of such a difference between samples of the same images, in [0, 1]."""
    has_drifted: bool


@dataclass(frozen=True, kw_only=True)
class DriftReport:
    """How far some images have drifted from a reference."""

    num_images: int
    num_reference: int
    threshold: float
    """Of the index."""
    least_images: int | None
    """With so many images the index of no feature reaches the threshold by chance; None: the reference is too small."""
    features: tuple[FeatureDrift, ...]

    @property
    def drifted(self) -> tuple[str, ...]:
        """The features that have drifted."""
        return tuple(one.feature for one in self.features if one.has_drifted)

    @property
    def has_few_images(self) -> bool:
        """Whether a drift that matters may go unnoticed, or be an accident."""
        return self.least_images is None or self.num_images < self.least_images

    def to_json(self) -> dict[str, Any]:
        """For programs."""
        values = asdict(self)
        features = {one.pop("feature"): one for one in values.pop("features")}
        return {**values, "has_few_images": self.has_few_images, "drifted": list(self.drifted), "features": features}


def compare_with_reference(
    reference: ImageProfile, counts: Mapping[str, Counts], num_images: int, threshold: float
) -> DriftReport:
    """Compare counts with a reference.

    Args:
        reference: of the package.
        counts: by feature, in the bins of the reference; see :class:`runner.evaluation.image_features.FeatureCounter`.
        num_images: that were counted, at least 1.
        threshold: of the population stability index. Siddiqi's rule: below 0.1 no change, above 0.25 a large one.
    """
    features, needed = [], list[float]()
    for name in FEATURES:
        before, now = np.array(reference.counts_of(name), np.int64), counts[name]
        # Of the index of samples from the same images; see `population_stability_index`.
        quantile = float(chdtri(max(int(((before + now) > 0).sum()) - 1, 1), _CHANCE))
        needed.append(threshold / quantile - 1 / reference.num_images)
        psi = population_stability_index(before, now)
        test: Test = "chi_square" if name == CLASS_FEATURE else "kolmogorov_smirnov"
        statistic, p_value = (chi_square if name == CLASS_FEATURE else kolmogorov_smirnov)(before, now)
        features.append(
            FeatureDrift(
                feature=name,
                psi=psi,
                psi_by_chance=quantile * (1 / reference.num_images + 1 / num_images),
                test=test,
                statistic=statistic,
                p_value=p_value,
                has_drifted=psi >= threshold and p_value < MAX_P_VALUE,
            )
        )
    return DriftReport(
        num_images=num_images,
        num_reference=reference.num_images,
        threshold=threshold,
        least_images=math.ceil(1 / min(needed)) if min(needed) > 0 else None,
        features=tuple(features),
    )


def population_stability_index(before: Counts, now: Counts) -> float:
    """Σ (p − q) ln(p / q) over the bins, where p and q are the shares of the images in each: 0 where they are equal.

    Siddiqi 2006, Credit Risk Scorecards; it is Jeffreys' divergence. The share of half an image of the smaller sample
    is added to each bin, since an empty one would make it infinite. For samples of N and M images from the same
    distribution over B bins, PSI / (1/N + 1/M) is about χ² distributed with B − 1 degrees of freedom (Yurdakul and
    Naranjo 2020, Statistical properties of the population stability index).
    """
    added = _ADDED_IMAGES / min(before.sum(), now.sum())
    shares_before, shares_now = (
        (counts / counts.sum() + added) / (1 + added * len(counts)) for counts in (before, now)
    )
    return float(((shares_now - shares_before) * np.log(shares_now / shares_before)).sum())


def kolmogorov_smirnov(before: Counts, now: Counts) -> tuple[float, float]:
    """The two-sample test of Kolmogorov and Smirnov: the largest difference D of the distribution functions, p-value.

    The functions are compared at the edges of the bins only, so D is at most that of the numbers themselves, and the
    p-value at least as large. It is that of large samples, K(D √(NM / (N + M))) (Smirnov 1948).
    """
    num_before, num_now = int(before.sum()), int(now.sum())
    difference = float(np.abs(before.cumsum() / num_before - now.cumsum() / num_now).max())
    return difference, float(kolmogorov(difference * math.sqrt(num_before * num_now / (num_before + num_now))))


def chi_square(before: Counts, now: Counts) -> tuple[float, float]:
    """Pearson's χ² test that two samples have the same shares of classes: statistic, p-value.

    The classes that are rarest in both together are counted as one until at least one image of each is expected in the
    smaller sample (Cochran 1954, Some methods for strengthening the common χ² tests).
    """
    table = np.stack((before, now))[:, np.argsort(-(before + now), kind="stable")]
    share = min(before.sum(), now.sum()) / table.sum()
    is_kept = table.sum(axis=0) * share >= _LEAST_EXPECTED
    table = np.column_stack((table[:, is_kept], table[:, ~is_kept].sum(axis=1)))
    if table[:, -1].sum() * share < _LEAST_EXPECTED and table.shape[1] > 1:
        table = np.column_stack((table[:, :-2], table[:, -2:].sum(axis=1)))
    if table.shape[1] == 1:
        return 0.0, 1.0
    expected = table.sum(axis=1, keepdims=True) * table.sum(axis=0, keepdims=True) / table.sum()
    statistic = float(((table - expected) ** 2 / expected).sum())
    return statistic, float(chdtrc(table.shape[1] - 1, statistic))
