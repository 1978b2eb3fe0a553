"""A transform and a loss for the runner: `pip install ./examples/own_parts`, then `--help transforms`."""

from collections.abc import Callable

import torch
from pydantic import BaseModel, Field
from torch import Tensor


class Salt(BaseModel):
    """Settings of salt."""

    share: float = Field(default=0.01, ge=0, le=1)
    """Probability that a pixel becomes white."""


def salt(settings: Salt) -> Callable[[Tensor], Tensor]:
    """Set pixels of a uint8 image of shape (channels, height, width) to white, each with the same probability."""
    return lambda image: image.masked_fill(torch.rand(image.shape[1:]) < settings.share, 255)


class Focal(BaseModel):
    """Settings of focal."""

    gamma: float = Field(ge=0)
    """How much less images count that are classified well; 0 is cross-entropy."""


def focal(settings: Focal) -> Callable[[Tensor, Tensor], Tensor]:
    """The focal loss (Lin et al. 2017) of logits and targets of shape (batch, classes), one number per image."""

    def per_image(logits: Tensor, targets: Tensor) -> Tensor:
        logs = logits.log_softmax(dim=1)
        return -(targets * (1 - logs.exp()) ** settings.gamma * logs).sum(dim=1)

    return per_image
