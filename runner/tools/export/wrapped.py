"""What is exported: the module with its ends, the names and the shapes of both."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from runner.config.schema.transforms import Normalize
from runner.data.images.transforms import Normalizer

_TRACED_BATCH = 2  # torch.export takes 0 and 1 for constants


class WithPreprocessing(nn.Module):
    """From pixels to probabilities: uint8 N × size × size × 3 → float32 N × classes, each row with the sum 1."""

    def __init__(self, module: nn.Module, normalize: Normalize) -> None:
        super().__init__()
        self.normalizer = Normalizer(normalize)
        self.module = module

    def forward(self, images: Tensor) -> Tensor:
        """Normalise, score, and turn scores into probabilities."""
        logits: Tensor = self.module(self.normalizer(images.permute(0, 3, 1, 2)))
        return logits.softmax(dim=1)


@dataclass(frozen=True, kw_only=True)
class Wrapped:
    """A module with what its users must know."""

    module: nn.Module
    """In eval mode, on the CPU, fp32."""
    example: Tensor
    """An input of the right shape and type."""
    input: dict[str, Any]
    """Name, dtype, shape and meaning of the input, for the metadata."""
    output: dict[str, Any]
    """The same of the output."""


def wrap(module: nn.Module, normalize: Normalize, *, image_size: int, include_preprocessing: bool) -> Wrapped:
    """Give a module the ends that were asked for.

    Resizing and cropping stay outside: the libraries that users of an exported model have resample differently, and
    a batch has one size anyway. The metadata states them.

    Args:
        module: normalised float32 N × 3 × size × size → logits N × classes.
        normalize: how pixels are normalised.
        image_size: side of the square images in pixels.
        include_preprocessing: whether normalising and softmax become part of the model.
    """
    if include_preprocessing:
        return Wrapped(
            module=WithPreprocessing(module, normalize).eval(),
            example=torch.zeros(_TRACED_BATCH, image_size, image_size, 3, dtype=torch.uint8),
            input={
                "name": "images",
                "dtype": "uint8",
                "shape": ["batch", image_size, image_size, 3],
                "meaning": "RGB pixels after the transforms under preprocessing",
            },
            output={"name": "probabilities", "dtype": "float32", "shape": ["batch", "classes"]},
        )
    return Wrapped(
        module=module.eval(),
        example=torch.zeros(_TRACED_BATCH, 3, image_size, image_size),
        input={
            "name": "images",
            "dtype": "float32",
            "shape": ["batch", 3, image_size, image_size],
            "meaning": "RGB after the transforms under preprocessing, as (pixel / 255 − mean) / std",
        },
        output={"name": "logits", "dtype": "float32", "shape": ["batch", "classes"]},
    )
