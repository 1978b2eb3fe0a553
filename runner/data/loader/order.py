"""Which images make up which batch: pure functions of the numbers in the config, the same on every rank."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from runner.base.keyed_random import permutation

# BatchNorm can't train on one value per channel, so no rank gets fewer.
_MIN_IMAGES_PER_RANK = 2


def epoch_order(num_samples: int, seed: int, epoch: int) -> npt.NDArray[np.int64]:
    """The order in which the training images are used in this epoch (from 0); shape (num_samples,)."""
    return permutation(num_samples, seed, "order", epoch)


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
    """How an epoch is cut into global batches: from any position, so that a run can go on in the middle of one.

    A global batch is made of B·W consecutive positions of the epoch's order, for B images per process and W processes;
    rank r takes the r-th contiguous, as even as possible part of it. With last_batch=keep the last, incomplete global
    batch is used too; where it would leave a rank with fewer than 2 images it is merged into the batch before it, which
    is then larger by at most 2 images per rank. With drop it is left out.
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
