"""The moving average of a model's weights (trainer.ema_decay)."""

from __future__ import annotations

from copy import deepcopy
from itertools import chain

import torch
from torch import Tensor, nn


class MovingAverage:
    """Exponential moving average of a model's parameters and floating-point buffers (Polyak and Juditsky 1992).

    The numbers are those of torch.optim.swa_utils.AveragedModel, which waits for the device at each step: it brings
    its count of steps there.
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        """Begin with the model as it is.

        Args:
            model: on its device.
            decay: share of the average that an update keeps, in (0, 1).
        """
        self.module = deepcopy(model)
        self.num_updates = 0
        self._model = model
        self._decay = decay

    @torch.no_grad()
    def update(self) -> None:
        """Take in the model as it is now: average ← decay × average + (1 − decay) × model.

        The first time, and of integers (BatchNorm's counts of steps) always, the model's values themselves.
        """
        averages, weights = [], []
        # Looked up each time: a model may put another tensor in a buffer's place.
        for average, value in zip(_tensors_of(self.module), _tensors_of(self._model), strict=True):
            if average.is_floating_point():
                averages.append(average)
                weights.append(value)
            else:
                average.copy_(value)
        if self.num_updates == 0:
            torch._foreach_copy_(averages, weights)
        else:
            torch._foreach_lerp_(averages, weights, 1 - self._decay)
        self.num_updates += 1


def _tensors_of(module: nn.Module) -> chain[Tensor]:
    return chain(module.parameters(), module.buffers())
