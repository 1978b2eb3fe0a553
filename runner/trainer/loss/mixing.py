"""Training images that are mixed with others of their batch."""

from __future__ import annotations

import torch
from torchvision.transforms import v2

from runner.config.schema.trainer import TrainerConfig


class Mixing:
    """MixUp (Zhang et al. 2018, arXiv:1710.09412), CutMix (Yun et al. 2019, arXiv:1905.04899), or randomly one of them.

    Only torch's global CPU generator is drawn from.
    """

    def __init__(self, trainer: TrainerConfig, num_classes: int) -> None:
        """At least one of trainer.mixup_alpha and trainer.cutmix_alpha is given."""
        ways: list[v2.Transform] = []
        if trainer.mixup_alpha is not None:
            ways.append(v2.MixUp(alpha=trainer.mixup_alpha, num_classes=num_classes))
        if trainer.cutmix_alpha is not None:
            ways.append(v2.CutMix(alpha=trainer.cutmix_alpha, num_classes=num_classes))
        self._ways = ways

    def __call__(self, images: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Mix each image with the one before it in its batch, the first with the last.

        Args:
            images: normalised, float, shape (N, channels, height, width).
            labels: class indices, int64, shape (N,).

        Returns:
            Images of the same shape, and the share of each class in each, float32, shape (N, classes). Of less than two
            images both arguments are returned as they are.
        """
        if len(labels) < 2:
            return images, labels
        way = self._ways[int(torch.randint(len(self._ways), ()))]
        mixed, shares = way(images, labels)
        return mixed, shares


def build_mixing(trainer: TrainerConfig, num_classes: int) -> Mixing | None:
    """The mixing that the config asks for; None without any."""
    return None if trainer.mixup_alpha is None and trainer.cutmix_alpha is None else Mixing(trainer, num_classes)
