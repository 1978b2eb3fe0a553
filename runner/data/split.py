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


def grouped_split(
    labels: npt.NDArray[np.int64], groups: npt.NDArray[np.int64], fraction: float, seed: int
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Set about a share of each class aside, in whole groups: no group has images on both sides.

    Goes through the groups in a random order and sets aside each one that brings the classes nearer to their shares
    (the sum over classes of |set aside − share|), as long as each class keeps an image in training. A class of which
    nothing is set aside then, because its groups are large, gives its smallest group that training can spare.

    Args:
        labels: class index of each image, shape (N,).
        groups: number of each image's group, from 0, shape (N,).
        fraction: share to set aside, in (0, 1).
        seed: seed of the experiment.

    Returns:
        Image numbers for training and for validation, each in ascending order.
    """
    num_groups, num_classes = int(groups.max()) + 1, int(labels.max()) + 1
    pairs, counts = np.unique(groups * num_classes + labels, return_counts=True)
    starts = np.searchsorted(pairs, np.arange(num_groups + 1) * num_classes)
    total = np.bincount(labels, minlength=num_classes)
    aside = np.zeros(num_classes, dtype=np.int64)
    is_val = np.zeros(num_groups, dtype=bool)

    def classes_of(group: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        place = slice(starts[group], starts[group + 1])
        return pairs[place] % num_classes, counts[place]

    def can_spare(group: int) -> bool:
        own, sizes = classes_of(group)
        return len(own) > 0 and not is_val[group] and bool((aside[own] + sizes < total[own]).all())

    def set_aside(group: int) -> None:
        own, sizes = classes_of(group)
        aside[own] += sizes
        is_val[group] = True

    for group in permutation(num_groups, seed, "groups").tolist():
        own, sizes = classes_of(group)
        missing = fraction * total[own] - aside[own]
        if can_spare(group) and np.abs(missing - sizes).sum() < np.abs(missing).sum():
            set_aside(group)
    for label in np.flatnonzero((total > 0) & (aside == 0)).tolist():
        spare = [group for group in np.unique(groups[labels == label]).tolist() if can_spare(group)]
        if spare and aside[label] == 0:
            set_aside(min(spare, key=lambda group: int(classes_of(group)[1].sum())))
    chosen = is_val[groups]
    return np.flatnonzero(~chosen), np.flatnonzero(chosen)
