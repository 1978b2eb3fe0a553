"""The training loss: cross-entropy, binary cross-entropy, or a user's own by the entry point group `runner.losses`."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from torch import Tensor
from torch.nn import functional

from runner.base.errors import ConfigError, Problem
from runner.base.reasons import first_line
from runner.config.schema.checks.parts import LOSSES, call_part
from runner.config.schema.trainer import TrainerConfig

_KEY = "trainer.loss"

SumOfLosses = Callable[[Tensor, Tensor, Tensor | None], Tensor]
"""Called with logits (float32, shape (N, classes)), targets (class indices, int64, shape (N,), or shares of the
classes, float32, shape (N, classes)) and a weight for each class or None; returns the sum of the images' losses."""


def build_loss(trainer: TrainerConfig) -> SumOfLosses:
    """The loss that the config asks for.

    Raises:
        ConfigError: a user's loss can't be used.
    """
    if trainer.loss == "cross_entropy":
        return partial(_cross_entropy, label_smoothing=trainer.label_smoothing)
    if trainer.loss == "binary_cross_entropy":
        per_image: Any = partial(_binary_cross_entropy, trainer.target_threshold)
    else:
        per_image = call_part(LOSSES, trainer.loss, trainer.loss_arguments, _KEY)
    return PerImageLoss(trainer.loss, per_image, trainer.label_smoothing)


def _cross_entropy(logits: Tensor, targets: Tensor, weight: Tensor | None, *, label_smoothing: float) -> Tensor:
    return functional.cross_entropy(logits, targets, weight=weight, reduction="sum", label_smoothing=label_smoothing)


def _binary_cross_entropy(threshold: float | None, logits: Tensor, targets: Tensor) -> Tensor:
    """Each class against all others, the mean over the classes (Wightman et al. 2021, arXiv:2110.00476)."""
    if threshold is not None:
        targets = targets.gt(threshold).to(logits.dtype)
    return functional.binary_cross_entropy_with_logits(logits, targets, reduction="none").mean(dim=1)


class PerImageLoss:
    """Calls a loss that takes shares of the classes and gives a number for each image; checks what it returns."""

    def __init__(self, name: str, per_image: Any, smoothing: float) -> None:  # noqa: ANN401 - what a part returned
        """Take the function.

        Args:
            name: the value of trainer.loss.
            per_image: called with logits and targets, float32, shape (N, classes); returns losses of shape (N,).
            smoothing: trainer.label_smoothing.

        Raises:
            ConfigError: it can't be called.
        """
        self._name = name
        self._smoothing = smoothing
        self._per_image = per_image
        if not callable(per_image):
            raise self._wrong(f"returned a {type(per_image).__name__}; it must return a function")

    def __call__(self, logits: Tensor, targets: Tensor, weight: Tensor | None) -> Tensor:
        """The sum of the losses, each weighted by the shares of its image's classes; see :data:`SumOfLosses`.

        Raises:
            ConfigError: the user's function raises an error, or returns anything but a loss for each image.
        """
        if len(logits) == 0:  # all images of this process are bad
            return logits.sum()
        num_classes = logits.shape[1]
        shares = functional.one_hot(targets, num_classes).to(logits.dtype) if targets.ndim == 1 else targets
        try:
            losses = self._per_image(logits, shares * (1 - self._smoothing) + self._smoothing / num_classes)
        except Exception as error:  # a user's function may raise anything
            raise self._wrong(f"failed: {type(error).__name__}: {first_line(error)}") from error
        if not isinstance(losses, Tensor) or losses.shape != (len(logits),):
            found = f"shape {tuple(losses.shape)}" if isinstance(losses, Tensor) else f"a {type(losses).__name__}"
            raise self._wrong(f"returned {found} for {len(logits)} images; it must return a loss for each")
        return (losses if weight is None else losses * (shares @ weight)).sum()

    def _wrong(self, message: str) -> ConfigError:
        return ConfigError([Problem(key=_KEY, value=self._name, has_value=True, message=f"this loss {message}")])
