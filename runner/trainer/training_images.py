"""The images of a training: their batches, how much each counts, and which of them can't be read."""

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
    `weight` would give it in one process. As the order is known beforehand, every process knows the sum of all weights.
    """

    def __init__(
        self, batches: TrainBatches, class_weights: npt.NDArray[np.float64] | None, device: torch.device
    ) -> None:
        self._batches = batches
        self._class_weights = class_weights
        self._device = device
        self._of_order: npt.NDArray[np.float64] | None = None
        self.per_class: torch.Tensor | None = None
        """float32, shape (classes,), on the device; None where all images count alike."""

    def begin(self, epoch: int) -> None:
        """Look up the weights of an epoch's images, in their order."""
        if self._class_weights is not None:
            order = self._batches.next_ids(epoch, 0, len(self._batches.source))
            self._of_order = self._class_weights[self._batches.source.labels[order]]
            self.per_class = torch.from_numpy(self._class_weights).to(self._device, torch.float32)

    def of_positions(self, start: int, stop: int) -> float:
        """The sum over positions start … stop − 1 of the epoch's order."""
        return stop - start if self._of_order is None else float(self._of_order[start:stop].sum())

    def of_images(self, images: Iterable[int]) -> float:
        """The sum over images, by their numbers."""
        numbers = np.fromiter(images, np.int64)
        if self._class_weights is None:
            return len(numbers)
        return float(self._class_weights[self._batches.source.labels[numbers]].sum())


@dataclass(frozen=True, kw_only=True)
class TrainingImages:
    """The training and the validation split, as one process uses them."""

    train_batches: TrainBatches
    val_batches: EvalBatches
    normalizer: nn.Module
    """uint8 N × 3 × H × W → float32, on the device."""
    weighting: Weighting
    bad_train: BadImages
    bad_val: BadImages
    classes: tuple[str, ...]
    """Class names in index order."""
    fingerprint: str
    """Of the data set."""

    def is_epoch_over(self, progress: Progress) -> bool:
        """Whether all images of the epoch in progress were trained on."""
        return self.train_batches.plan.is_over(progress.position)

    def summaries_of_bad(self) -> Iterator[str]:
        """A sentence on each split of which images were skipped."""
        for bad_images in (self.bad_train, self.bad_val):
            if summary := bad_images.summary():
                yield summary

    def check_totals(self, train: Totals, progress: Progress) -> None:
        """Check that the images of an epoch, over all processes and attempts, are those that seed and epoch ask for."""
        asked = self._asked_for(progress)
        num_asked = train.count + train.skipped
        assert num_asked == len(asked), f"{num_asked} images were asked for in this epoch, not {len(asked)}"
        assert train.samples_digest == digest_of_samples(0, asked), "other images were used than the seed asks for"

    def capture(self, progress: Progress) -> dict[str, Any]:
        """What identifies the data set, and the images that follow in the epoch's order; plain values."""
        return {
            "next_ids_digest": self._next_ids_digest(progress),
            "data_fingerprint": self.fingerprint,
            "classes": list(self.classes),
        }

    def restore(self, checkpoint: Checkpoint, progress: Progress, counted: Totals | None) -> None:
        """Continue the epoch of a checkpoint, if it is an epoch of these images.

        Args:
            checkpoint: of the run.
            progress: that of the checkpoint.
            counted: what the checkpoint has counted of its epoch; None in all processes but the main one.

        Raises:
            CheckpointError: when seed and epoch ask for other images than the checkpoint says.
        """
        self.bad_train.begin(checkpoint.state["meter"].get("skipped", 0))
        if checkpoint.state["data_fingerprint"] != self.fingerprint:
            return  # the user has said that other images are wanted
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
