"""How much each image counts in a step: all alike, or by the weight of its class."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt
import torch

from runner.data.loader.loader import TrainBatches


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
