"""What can be said of guesses whose truth is known: per-class measures, averages, calibration."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from runner.evaluation.confusion import Confusion, Counts

Shares = npt.NDArray[np.float64]
_NUM_BINS = 15


@dataclass(frozen=True, kw_only=True)
class PerClass:
    """Measures of each class, shape (classes,); 0 where a ratio has nothing to divide by, as scikit-learn has it."""

    precision: Shares
    """Share of the images taken for this class that are of it, in [0, 1]."""
    recall: Shares
    """Share of the images of this class that were taken for it, in [0, 1]."""
    f1: Shares
    """Harmonic mean of precision and recall, in [0, 1]."""
    support: Counts
    """Images of this class."""

    def macro_average(self) -> dict[str, float]:
        """The mean over the classes that have images, each counting the same."""
        return self._average((self.support > 0).astype(np.float64))

    def weighted_average(self) -> dict[str, float]:
        """The mean over all classes, each weighted with its images."""
        return self._average(self.support.astype(np.float64))

    def _average(self, weights: Shares) -> dict[str, float]:
        return {name: float(np.average(getattr(self, name), weights=weights)) for name in ("precision", "recall", "f1")}


def per_class(confusion: Confusion) -> PerClass:
    """The measures of each class."""
    hits, support, guesses = confusion.hits, confusion.of_truth, confusion.of_prediction
    return PerClass(
        precision=_ratio(hits, guesses),
        recall=_ratio(hits, support),
        f1=_ratio(2 * hits, support + guesses),
        support=support,
    )


def expected_calibration_error(probability: Shares, is_right: npt.NDArray[np.bool_]) -> float:
    """How far probabilities are from the share of right guesses, in [0, 1].

    Guo et al. 2017, On Calibration of Modern Neural Networks: Σ |B| / N · |accuracy(B) − mean probability(B)| over 15
    bins of equal width, ((b − 1) / 15, b / 15].

    Args:
        probability: of the first guess for each image, shape (N,), N ≥ 1.
        is_right: whether that guess was right, shape (N,).
    """
    bins = np.clip(np.ceil(probability * _NUM_BINS).astype(np.int64) - 1, 0, _NUM_BINS - 1)
    gaps = np.bincount(bins, weights=is_right - probability, minlength=_NUM_BINS)
    return float(np.abs(gaps).sum() / len(probability))


def of_classes(labels: Counts, predicted: Counts, classes: tuple[str, ...]) -> dict[str, Any]:
    """Everything that first guesses say of the classes, as plain values.

    Args:
        labels: class index of each image, shape (N,), N ≥ 1.
        predicted: class index of the first guess, shape (N,).
        classes: names in index order.
    """
    confusion = Confusion.of(labels, predicted, len(classes))
    each = per_class(confusion)
    return {
        "macro_average": each.macro_average(),
        "weighted_average": each.weighted_average(),
        "classes": list(classes),
        "per_class": [
            {
                "class": name,
                "precision": float(each.precision[number]),
                "recall": float(each.recall[number]),
                "f1": float(each.f1[number]),
                "support": int(each.support[number]),
            }
            for number, name in enumerate(classes)
        ],
        "confusion_matrix": confusion.to_json(),
    }


def _ratio(numerator: Counts, denominator: Counts) -> Shares:
    return np.divide(numerator, denominator, out=np.zeros(len(numerator)), where=denominator > 0)
