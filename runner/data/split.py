"""A validation split out of a training split."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from runner.keyed_random import permutation


def stratified_split(
    labels: npt.NDArray[np.int64], fraction: float, seed: int, classes: Sequence[str]
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Set a share of each class aside.

    Which images of a class are drawn depends on the seed, the name of the class and its number of images alone: it
    stays when other classes come, go or grow. A class of one image stays in training; of two or more, at least one
    image goes to each side.

    Args:
        labels: class index of each image, shape (N,).
        fraction: share to set aside, in (0, 1); of n images round(fraction × n).
        seed: seed of the experiment.
        classes: class names in index order.

    Returns:
        Image numbers for training and for validation, each in ascending order.
    """
    by_class = np.argsort(labels, kind="stable")
    ends = np.cumsum(np.bincount(labels, minlength=len(classes)))
    is_val = np.zeros(len(labels), dtype=bool)
    for name, ids in zip(classes, np.split(by_class, ends[:-1]), strict=True):
        num_val = min(max(round(fraction * len(ids)), 1), len(ids) - 1)
        if num_val > 0:
            is_val[ids[permutation(len(ids), seed, "split", name)[:num_val]]] = True
    return np.flatnonzero(~is_val), np.flatnonzero(is_val)
