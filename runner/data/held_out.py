"""Splits off validation images from a training split."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from runner.base.keyed_random import permutation


def stratified_split(
    labels: npt.NDArray[np.int64], fraction: float, seed: int, classes: Sequence[str]
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Split off a fraction of each class.

    Which images of a class are drawn depends only on the seed, the name of the class and its number of images, not on
    the other classes. A class of one image stays in training; of two or more, each side gets at least one image.

    Args:
        labels: class index of each image, shape (N,).
        fraction: of validation images, in (0, 1); of n images round(fraction × n).
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


def grouped_split(
    labels: npt.NDArray[np.int64],
    groups: npt.NDArray[np.int64],
    fraction: float,
    seed: int,
    classes: Sequence[str],
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Split off about a fraction of each class, keeping the images of a group together.

    Visits the groups in a random order, and moves one to validation if that brings the classes nearer to the fraction:
    if it lowers Σ (moved − fraction × n)² / n, summed over the classes of n images each. (Like scikit-learn's
    StratifiedGroupKFold, but for any fraction, in linear time, and independent of the version of a library.) A class
    without a validation image then gives its smallest group. A class whose images are all of one group stays in
    training.

    Args:
        labels: class index of each image, shape (N,).
        groups: number of each image's group, such as the patient, in the order of their names; shape (N,).
        fraction: of validation images, in (0, 1).
        seed: seed of the experiment.
        classes: class names in index order.

    Returns:
        Image numbers for training and for validation, each in ascending order.
    """
    numbers, group_of_image = np.unique(groups, return_inverse=True)
    members = np.bincount(labels, minlength=len(classes))
    # The classes of each group, and its number of images of each class.
    pairs, counts = np.unique(group_of_image * len(classes) + labels, return_counts=True)
    starts = np.searchsorted(pairs, np.arange(len(numbers) + 1) * len(classes))
    taken = np.zeros(len(classes), dtype=np.int64)
    is_val = np.zeros(len(numbers), dtype=bool)

    def take(group: int, *, only_if_nearer: bool) -> None:
        span = slice(starts[group], starts[group + 1])
        own, held = counts[span], pairs[span] % len(classes)
        change = own * (2 * (taken[held] - fraction * members[held]) + own) / members[held]
        if (taken[held] + own < members[held]).all() and (change.sum() < 0 or not only_if_nearer):
            is_val[group] = True
            taken[held] += own

    for group in permutation(len(numbers), seed, "split groups").tolist():
        take(group, only_if_nearer=True)
    sizes = np.bincount(group_of_image)
    for label in np.flatnonzero((taken == 0) & (members > 1)).tolist():
        candidates = np.unique(group_of_image[labels == label])
        if taken[label] == 0 and len(candidates) > 1:
            take(int(candidates[np.argmin(sizes[candidates])]), only_if_nearer=False)
    is_val_image = is_val[group_of_image]
    return np.flatnonzero(~is_val_image), np.flatnonzero(is_val_image)
