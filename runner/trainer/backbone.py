"""Freezing everything but the classification head for the first epochs."""

from __future__ import annotations

from torch import nn


def set_training_mode(module: nn.Module, head: nn.Module | None) -> None:
    """Put a model into training mode, as a whole or with a frozen backbone.

    A frozen backbone computes no gradients and its BatchNorm statistics stand still.

    Args:
        module: the whole model.
        head: its classification head where everything else is frozen; None trains all.
    """
    learning = {id(parameter) for parameter in (head or module).parameters()}
    for parameter in module.parameters():
        parameter.requires_grad_(id(parameter) in learning)
    module.train(head is None)
    if head is not None:
        head.train()
