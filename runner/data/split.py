"""A validation split out of a training split."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from runner.base.keyed_random import permutation


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


def grouped_split(
    labels: npt.NDArray[np.int64],
    groups: npt.NDArray[np.int64],
    fraction: float,
    seed: int,
    classes: Sequence[str],
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Set a share of each class aside without tearing groups apart, as far as the groups allow.

    Goes through the groups in a random order and sets one aside where that brings the classes nearer to their shares:
    where it lowers Σ (set aside − fraction × n)² / n, summed over the classes of n images each. (As scikit-learn's
    StratifiedGroupKFold, but for any fraction, in an order that no version of a library changes, and in linear time.)
    A class that is left without an image set aside then gives its smallest group. No class loses its last group: one
    whose images are all of one group stays in training.

    Args:
        labels: class index of each image, shape (N,).
        groups: number of each image's group, such as the patient, by the order of their names; shape (N,).
        fraction: share to set aside, in (0, 1).
        seed: seed of the experiment.
        classes: class names in index order.

    Returns:
        Image numbers for training and for validation, each in ascending order.
    """
    numbers, group_of_image = np.unique(groups, return_inverse=True)
    members = np.bincount(labels, minlength=len(classes))
    # Of each group, which classes it has and how many images of each.
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
