"""The order of the images and their division into batches, as pure functions of the config, equal on all ranks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from runner.base.keyed_random import permutation, random_words
from runner.data.source import Labels
from runner.data.splits import Splits

# BatchNorm can't train on one value per channel, so no rank gets fewer.
_MIN_IMAGES_PER_RANK = 2


def epoch_order(num_samples: int, seed: int, epoch: int) -> npt.NDArray[np.int64]:
    """The order in which the training images are used in this epoch (from 0); shape (num_samples,)."""
    return permutation(num_samples, seed, "order", epoch)


def repeated_order(num_samples: int, seed: int, epoch: int, *, repeats: int, apart: int) -> npt.NDArray[np.int64]:
    """An order in which each image comes several times, and as many positions are taken as there are images.

    Of the epoch's permutation, `apart` images after `apart` images are laid out `repeats` times each, so that copies
    of an image are `apart` positions from each other (the last ones may be closer).

    Args:
        num_samples: images of the training split, N.
        seed: seed of the experiment.
        epoch: counted from 0.
        repeats: how often an image comes.
        apart: data.batch_size.

    Returns:
        Numbers of images, shape (N,); about N / repeats different ones.
    """
    order = epoch_order(num_samples, seed, epoch)
    blocks = [np.tile(order[start : start + apart], repeats) for start in range(0, -(-num_samples // repeats), apart)]
    return np.concatenate(blocks)[:num_samples]


class Slice(NamedTuple):
    """Positions start … stop − 1."""

    start: int
    stop: int

    def share(self, part: int, num_parts: int) -> Slice:
        """One of `num_parts` contiguous parts, as even as can be: the first ones have one more."""
        size, num_larger = divmod(self.stop - self.start, num_parts)
        start = self.start + part * size + min(part, num_larger)
        return Slice(start, start + size + (part < num_larger))


@dataclass(frozen=True, kw_only=True)
class TrainPlan:
    """How an epoch is divided into global batches, from any position, so that a run can resume within an epoch.

    A global batch has B·W consecutive positions of the epoch's order, for B images per process and W processes; rank r
    takes the r-th of W contiguous parts that are as even as possible. With last_batch=keep the incomplete batch at the
    end is used; if it would give a rank fewer than 2 images, it is merged into the batch before, which gets at most 2
    more images per rank. With last_batch=drop it is left out.
    """

    num_samples: int
    batch_size: int
    """B, images per process."""
    world_size: int
    """W."""
    last_batch: Literal["keep", "drop"]

    @property
    def full_size(self) -> int:
        """Images in a complete global batch."""
        return self.batch_size * self.world_size

    def is_over(self, position: int) -> bool:
        """Whether no batch of the epoch begins at this position."""
        smallest = 1 if self.last_batch == "keep" else self.full_size
        return self.num_samples - position < smallest

    def batch_at(self, position: int) -> Slice:
        """The global batch that begins at this position (from 0) of the epoch's order."""
        stop = position + self.full_size
        rest = self.num_samples - stop
        is_too_small = 0 < rest < self.full_size and rest // self.world_size < _MIN_IMAGES_PER_RANK
        if self.last_batch == "keep" and (rest < 0 or is_too_small):
            stop = self.num_samples
        return Slice(position, stop)

    def batches_from(self, position: int) -> Iterator[Slice]:
        """All global batches from this position to the end of the epoch."""
        while not self.is_over(position):
            batch = self.batch_at(position)
            yield batch
            position = batch.stop

    @property
    def batches_per_epoch(self) -> int:
        """Number of global batches of a whole epoch, which is also the number of batches of each rank."""
        num_full, rest = divmod(self.num_samples, self.full_size)
        stands_alone = rest // self.world_size >= _MIN_IMAGES_PER_RANK or num_full == 0 < rest
        return num_full + (self.last_batch == "keep" and stands_alone)


def eval_batch(number: int, num_samples: int, batch_size: int) -> Slice:
    """Images of evaluation batch b: [b·B, (b+1)·B), consecutive, whatever the number of processes."""
    return Slice(number * batch_size, min((number + 1) * batch_size, num_samples))


def class_weights(labels: Labels, num_classes: int) -> npt.NDArray[np.float64]:
    """n / (K · n_c) for n images in K classes, n_c of them in class c: the total weight of each class is the same.

    scikit-learn calls this heuristic "balanced" (after King and Zeng 2001, Logistic Regression in Rare Events Data).
    The mean over all images is 1. Classes without an image are not counted in K and have weight 1.

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
    """N draws with replacement: a class uniformly, then an image of it uniformly.

    Position p is a function of (seed, epoch, p). The draws are remainders of 64-bit words, uniform up to one part in
    2^64 / n_c.

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
