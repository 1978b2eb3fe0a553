"""Which images make up which batch: pure functions of the numbers in the config, the same on every rank."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from runner.keyed_random import permutation

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
    """How an epoch is cut into global batches.

    Global batch g is made of the positions [g·B·W, (g+1)·B·W) of the epoch's order, for B images per process and W
    processes; rank r takes the r-th contiguous, as even as possible part of it. With last_batch=keep the last,
    incomplete global batch is used too; where it would leave a rank with fewer than 2 images it is merged into the
    batch before it, which is then larger by at most 2 images per rank. With drop it is left out.
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

    @property
    def batches_per_epoch(self) -> int:
        """Number of global batches, which is also the number of batches of each rank."""
        num_full, rest = divmod(self.num_samples, self.full_size)
        stands_alone = rest // self.world_size >= _MIN_IMAGES_PER_RANK or num_full == 0 < rest
        return num_full + (self.last_batch == "keep" and stands_alone)

    @property
    def num_samples_per_epoch(self) -> int:
        """Images used in one epoch, over all ranks."""
        if self.last_batch == "keep":
            return self.num_samples
        return self.batches_per_epoch * self.full_size

    def global_batch(self, batch: int) -> Slice:
        """Positions in the epoch's order of this global batch (from 0)."""
        is_last = batch == self.batches_per_epoch - 1
        start = batch * self.full_size
        return Slice(start, self.num_samples_per_epoch if is_last else start + self.full_size)


def eval_batch(number: int, num_samples: int, batch_size: int) -> Slice:
    """Images of evaluation batch b: [b·B, (b+1)·B), consecutive, whatever the number of processes."""
    return Slice(number * batch_size, min((number + 1) * batch_size, num_samples))
