"""A sparse confusion matrix."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Counts = npt.NDArray[np.int64]

# For the 21,841 classes of ImageNet-21k a dense matrix takes gigabytes in each process and a gigabyte in each file.
_MOST_CLASSES_IN_A_MATRIX = 2000
_MOST_SQUARES = 1000  # the picture has fewer pixels than this


@dataclass(frozen=True, kw_only=True)
class Confusion:
    """The entries above 0 of a confusion matrix, in row-major order."""

    truth: Counts
    """Class index, shape (entries,)."""
    predicted: Counts
    """Class index, shape (entries,)."""
    count: Counts
    """Above 0, shape (entries,)."""
    num_classes: int

    @classmethod
    def of(cls, labels: Counts, predicted: Counts, num_classes: int) -> Confusion:
        """From the true and the predicted class index of each image, shape (N,) each."""
        pairs, count = np.unique(labels * num_classes + predicted, return_counts=True)
        truth, guess = np.divmod(pairs, num_classes)
        return cls(truth=truth, predicted=guess, count=count.astype(np.int64), num_classes=num_classes)

    @classmethod
    def from_json(cls, value: Sequence[Sequence[int]] | Mapping[str, Sequence[int]], num_classes: int) -> Confusion:
        """From the result of :meth:`to_json`."""
        if isinstance(value, Mapping):
            parts = {name: np.array(value[name], dtype=np.int64) for name in ("truth", "predicted", "count")}
            return cls(**parts, num_classes=num_classes)
        matrix = np.array(value, dtype=np.int64)
        truth, predicted = np.nonzero(matrix)
        return cls(truth=truth, predicted=predicted, count=matrix[truth, predicted], num_classes=num_classes)

    @property
    def is_small(self) -> bool:
        """Whether the matrix is written densely."""
        return self.num_classes <= _MOST_CLASSES_IN_A_MATRIX

    @property
    def of_truth(self) -> Counts:
        """Images of each class, shape (classes,)."""
        return self._summed(self.truth)

    @property
    def of_prediction(self) -> Counts:
        """Images predicted as each class, shape (classes,)."""
        return self._summed(self.predicted)

    @property
    def hits(self) -> Counts:
        """Images of each class that were predicted as it, shape (classes,)."""
        is_hit = self.truth == self.predicted
        return self._summed(self.truth[is_hit], self.count[is_hit])

    def matrix(self) -> Counts:
        """The dense matrix, true classes in rows: shape (classes, classes)."""
        return self._in_bins(self.num_classes)

    def for_picture(self) -> Counts:
        """The dense matrix, with neighbouring classes summed where there are more than 1,000: shape (cells, cells)."""
        return self._in_bins(min(self.num_classes, _MOST_SQUARES))

    def _in_bins(self, num_bins: int) -> Counts:
        bins = np.zeros((num_bins, num_bins), dtype=np.int64)
        places = (self.truth * num_bins // self.num_classes, self.predicted * num_bins // self.num_classes)
        np.add.at(bins, places, self.count)
        return bins

    def to_json(self) -> Any:  # noqa: ANN401 - a matrix, or its entries by column
        """The dense matrix as nested lists; of more than 2,000 classes its entries above 0 as three lists."""
        if self.is_small:
            return self.matrix().tolist()
        return {name: getattr(self, name).tolist() for name in ("truth", "predicted", "count")}

    def _summed(self, classes: Counts, count: Counts | None = None) -> Counts:
        # Sums in float64 are exact up to 2^53 images.
        sums = np.bincount(classes, weights=self.count if count is None else count, minlength=self.num_classes)
        return sums.astype(np.int64)


def shares_of_rows(matrix: Counts) -> npt.NDArray[np.float64]:
    """Each count divided by the sum of its row, in [0, 1]; 0 in rows without images."""
    totals = matrix.sum(axis=1, keepdims=True)
    shares: npt.NDArray[np.float64] = np.divide(matrix, totals, out=np.zeros(matrix.shape), where=totals > 0)
    return shares
