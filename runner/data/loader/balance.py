"""Against classes of different sizes: weights of the classes, and an order that draws by them."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from runner.base.keyed_random import random_words
from runner.data.source import Labels
from runner.data.splits import Splits


def class_weights(labels: Labels, num_classes: int) -> npt.NDArray[np.float64]:
    """n / (K · n_c) for n images in K classes, n_c of them in class c: each class then weighs the same in all.

    The heuristic that scikit-learn calls "balanced" (after King and Zeng 2001, Logistic Regression in Rare Events
    Data). The mean over all images is 1. Classes without an image do not count as one of K and weigh 1.

    Args:
        labels: class index of each training image, shape (N,).
        num_classes: number of outputs of the model.

    Returns:
        Shape (num_classes,), above 0.
    """
    counts = np.bincount(labels, minlength=num_classes)
    weights = np.ones(num_classes)
    weights[counts > 0] = len(labels) / (np.count_nonzero(counts) * counts[counts > 0])
    return weights


def weights_by_class(splits: Splits) -> dict[str, float]:
    """The weight of each class in the training split, by its name."""
    weights = class_weights(splits.train.labels, len(splits.classes))
    return dict(zip(splits.classes, weights.tolist(), strict=True))


def balanced_order(labels: Labels, seed: int, epoch: int) -> npt.NDArray[np.int64]:
    """N draws with replacement, each of an image with a chance in proportion to the weight of its class.

    The same as a class drawn evenly and then an image of it, evenly: position p is a function of (seed, epoch, p).
    (Remainders of 64-bit words: the chances are even up to one part in 2^64 / n_c.)

    Args:
        labels: class index of each training image, shape (N,).
        seed: seed of the experiment.
        epoch: counted from 0.

    Returns:
        Numbers of images, shape (N,).
    """
    by_class = np.argsort(labels, kind="stable")
    counts = np.bincount(labels)
    present = np.flatnonzero(counts)
    starts = np.cumsum(counts) - counts
    words = random_words(2 * len(labels), seed, "sampler", epoch).reshape(-1, 2)
    drawn = present[(words[:, 0] % np.uint64(len(present))).astype(np.int64)]
    within = (words[:, 1] % counts[drawn].astype(np.uint64)).astype(np.int64)
    images: npt.NDArray[np.int64] = by_class[starts[drawn] + within]
    return images
