"""The part of the training loss that a teacher gives."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from runner.config.schema.distill import DistillConfig


class Distillation:
    """Adds a teacher to a loss (Hinton, Vinyals and Dean 2015, arXiv:1503.02531).

    The loss of an image is (1 − weight) × that of its label + weight × T² × KL(teacher ‖ student), where both models'
    scores are divided by the temperature T. T² keeps the size of the gradients when T changes.
    """

    def __init__(self, config: DistillConfig, teacher: nn.Module) -> None:
        """Take the teacher, on the device of the training; its parameters must not learn.

        Args:
            config: the group `distill`.
            teacher: normalised images N × channels × H × W → logits N × classes.
        """
        self._temperature = config.temperature
        self._weight = config.weight
        self._teacher = teacher.eval()

    @torch.no_grad()
    def scores(self, images: Tensor) -> Tensor:
        """The teacher's logits, shape (N, classes), of the images that the student sees."""
        logits: Tensor = self._teacher(images)
        return logits

    def __call__(self, loss: Tensor, logits: Tensor, scores: Tensor, targets: Tensor, weight: Tensor | None) -> Tensor:
        """The sum of the losses with the teacher's part.

        Args:
            loss: the sum over the images of the loss of their labels.
            logits: of the student, float32, shape (N, classes).
            scores: of the teacher, float32, shape (N, classes).
            targets: class indices, int64, shape (N,), or shares of the classes, shape (N, classes).
            weight: of each class, float32, shape (classes,); None where all are 1.
        """
        student = functional.log_softmax(logits / self._temperature, dim=1)
        teacher = functional.log_softmax(scores / self._temperature, dim=1)
        losses = functional.kl_div(student, teacher, reduction="none", log_target=True).sum(dim=1)
        if weight is not None:
            losses = losses * (weight[targets] if targets.ndim == 1 else targets @ weight)
        return (1 - self._weight) * loss + self._weight * self._temperature**2 * losses.sum()
