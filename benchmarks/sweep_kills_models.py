"""The models of `sweep_kills.py`, which it offers by the entry point group `runner.models`, as a user's package does.

One trains as any other; one is killed by the system in the midst of its training, as by a broken extension.
"""

from __future__ import annotations

import ctypes

import torch
from torch import nn
from torchvision.models import resnet18

_STEPS_BEFORE_THE_CRASH = 3


class Crashing(nn.Module):
    """A network that reads from address 0 in one of its training steps: the system sends SIGSEGV."""

    def __init__(self, num_classes: int) -> None:
        super().__init__()
        self.body = resnet18(num_classes=num_classes)
        self.num_steps = 0

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        self.num_steps += self.training
        if self.num_steps > _STEPS_BEFORE_THE_CRASH:
            ctypes.string_at(0)
        scores: torch.Tensor = self.body(images)
        return scores


def steady(num_classes: int) -> nn.Module:
    network: nn.Module = resnet18(num_classes=num_classes)
    return network


def crashing(num_classes: int) -> nn.Module:
    return Crashing(num_classes)
