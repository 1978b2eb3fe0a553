"""The images of a training: their batches, their weights in the loss, and those that can't be read."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from runner.base.errors import CheckpointError
from runner.base.keyed_random import digest_of_samples
from runner.data.loader.loader import EvalBatches, TrainBatches
from runner.run.checkpoint import Checkpoint
from runner.trainer.bad_images import BadImages
from runner.trainer.meter import Totals
from runner.trainer.progress import Progress

_NUM_NEXT_IDS = 64


class Weighting:
    """Weights of images in the loss.

    A step's loss is the weighted mean over all images of the step on all processes, as torch's cross-entropy with
    `weight` would give it in one process. Every process knows the epoch's order, hence the sum of the step's weights.
    """

    def __init__(
        self, batches: TrainBatches, class_weights: npt.NDArray[np.float64] | None, device: torch.device
    ) -> None:
        self._batches = batches
        self._class_weights = class_weights
        self._device = device
        self._of_order: npt.NDArray[np.float64] | None = None
        self.per_class: torch.Tensor | None = None
        """float32, shape (classes,), on the device; None where all weights are 1."""

    def begin_epoch(self, epoch: int) -> None:
        """Look up the weights of an epoch's images, in the epoch's order."""
        if self._class_weights is not None:
            order = self._batches.next_ids(epoch, 0, len(self._batches.source))
            self._of_order = self._class_weights[self._batches.source.labels[order]]
            self.per_class = torch.from_numpy(self._class_weights).to(self._device, torch.float32)

    def of_positions(self, start: int, stop: int) -> float:
        """The sum of the weights at positions start … stop − 1 of the epoch's order."""
        return stop - start if self._of_order is None else float(self._of_order[start:stop].sum())

    def of_images(self, images: Iterable[int]) -> float:
        """The sum of the weights of images, given by their numbers."""
        numbers = np.fromiter(images, np.int64)
        if self._class_weights is None:
            return len(numbers)
        return float(self._class_weights[self._batches.source.labels[numbers]].sum())


@dataclass(frozen=True, kw_only=True)
class TrainingImages:
    """The training and the validation split of one process."""

    train_batches: TrainBatches
    val_batches: EvalBatches
    normalizer: nn.Module
    """pixels N × channels × H × W → float32, on the device."""
    weighting: Weighting
    bad_train: BadImages
    bad_val: BadImages
    classes: tuple[str, ...]
    """Class names in index order."""
    fingerprint: str
    """Of the data set."""

    def is_epoch_over(self, progress: Progress) -> bool:
        """Whether the epoch in progress has no more images."""
        return self.train_batches.plan.is_over(progress.position)

    def bad_image_summaries(self) -> Iterator[str]:
        """One sentence per split with skipped images."""
        for bad_images in (self.bad_train, self.bad_val):
            if summary := bad_images.summary():
                yield summary

    def check_totals(self, train: Totals, progress: Progress) -> None:
        """Check that the images of an epoch, over all processes and attempts, follow from seed and epoch."""
        asked = self._asked_for(progress)
        num_asked = train.count + train.skipped
        assert num_asked == len(asked), f"{num_asked} images were asked for in this epoch, not {len(asked)}"
        assert train.samples_digest == digest_of_samples(0, asked), "other images were used than the seed asks for"

    def capture(self, progress: Progress) -> dict[str, Any]:
        """Identity of the data set, and of the images that follow in the epoch's order, for state.json."""
        return {
            "next_ids_digest": self._next_ids_digest(progress),
            "data_fingerprint": self.fingerprint,
            "classes": list(self.classes),
        }

    def restore(self, checkpoint: Checkpoint, progress: Progress, counted: Totals | None) -> None:
        """Restore the count of bad images, and check that the epoch would continue with the right images.

        Args:
            checkpoint: of the run.
            progress: that of the checkpoint.
            counted: the checkpoint's sums over its epoch; None in all processes but the main one.

        Raises:
            CheckpointError: other images follow from seed and epoch than the checkpoint names.
        """
        self.bad_train.reset(checkpoint.state["meter"].get("skipped", 0))
        if checkpoint.state["data_fingerprint"] != self.fingerprint:
            return  # resume.allow=[data] has permitted other images
        if counted is not None:
            self._check_images_so_far(checkpoint, progress, counted)
        if checkpoint.state["next_ids_digest"] != self._next_ids_digest(progress):
            raise CheckpointError(
                f"checkpoint {checkpoint.name} would continue with other images than it left off at; it was written "
                "with another seed or another order of images: start a new run"
            )

    def _check_images_so_far(self, checkpoint: Checkpoint, progress: Progress, counted: Totals) -> None:
        asked = self._asked_for(progress)
        is_right = counted.count + counted.skipped == len(asked) == progress.position
        if not is_right or counted.samples_digest != digest_of_samples(0, asked):
            raise CheckpointError(
                f"checkpoint {checkpoint.name} is damaged: the images that it counts in the epoch in progress are not "
                "those that its seed asks for"
            )

    def _asked_for(self, progress: Progress) -> npt.NDArray[np.int64]:
        """The images of the epoch in progress, up to its position."""
        return self.train_batches.next_ids(progress.epoch, 0, progress.position)

    def _next_ids_digest(self, progress: Progress) -> int:
        return digest_of_samples(0, self.train_batches.next_ids(progress.epoch, progress.position, _NUM_NEXT_IDS))
