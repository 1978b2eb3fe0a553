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
            model: on its device; its parameters and buffers must stay the same objects.
            decay: share of the average that an update keeps, in (0, 1).
        """
        self.module = deepcopy(model)
        self.num_updates = 0
        self._decay = decay
        pairs = list(zip(_tensors_of(self.module), _tensors_of(model), strict=True))
        self._weights = [pair for pair in pairs if pair[0].is_floating_point()]
        self._counts = [pair for pair in pairs if not pair[0].is_floating_point()]

    @torch.no_grad()
    def update(self) -> None:
        """Take in the model as it is now: average ← decay × average + (1 − decay) × model.

        The first time, and of integers (BatchNorm's counts of steps) always, the model's values themselves.
        """
        averages, weights = [list(side) for side in zip(*self._weights, strict=True)]
        if self.num_updates == 0:
            torch._foreach_copy_(averages, weights)
        else:
            torch._foreach_lerp_(averages, weights, 1 - self._decay)
        for kept, count in self._counts:
            kept.copy_(count)
        self.num_updates += 1


def _tensors_of(module: nn.Module) -> chain[Tensor]:
    return chain(module.parameters(), module.buffers())
