"""Activations that the backward pass computes again instead of keeping them in memory: model.checkpoint_activations.

Chen et al. 2016, "Training Deep Nets with Sublinear Memory Cost" (arXiv:1604.06174), by torch.utils.checkpoint.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils.checkpoint import checkpoint
from torchvision import models

from runner.base.errors import InvalidModelError
from runner.base.reasons import first_line
from runner.config.schema.model import ModelConfig

# What is computed again as a whole: the repeated blocks of torchvision's classifiers.
_BLOCKS = (
    models.resnet.BasicBlock,
    models.resnet.Bottleneck,
    models.densenet._DenseLayer,
    models.convnext.CNBlock,
    models.efficientnet.MBConv,
    models.efficientnet.FusedMBConv,
    models.maxvit.MaxVitLayer,
    models.mnasnet._InvertedResidual,
    models.mobilenetv2.InvertedResidual,
    models.mobilenetv3.InvertedResidual,
    models.regnet.ResBottleneckBlock,
    models.shufflenetv2.InvertedResidual,
    models.swin_transformer.SwinTransformerBlock,
    models.vision_transformer.EncoderBlock,
)


def checkpoint_activations(module: nn.Module, config: ModelConfig) -> None:
    """Let the backward pass compute the activations within blocks again, if the config says so; changed in place.

    timm's models do it themselves, and so does a custom model with timm's method `set_grad_checkpointing(enable)`.
    Random draws of dropout and drop path are repeated, so that gradients are those of kept activations to the last bit
    on a CPU; :func:`statistics_kept` does the same for BatchNorm.

    Args:
        module: built from `config`; on any device.
        config: the group `model`.

    Raises:
        InvalidModelError: it is not known which parts of the model could be computed again.
    """
    if not config.checkpoint_activations:
        return
    enable = getattr(module, "set_grad_checkpointing", None)
    blocks = [block for block in module.modules() if isinstance(block, _BLOCKS)]
    if callable(enable):
        try:
            enable(True)
        except Exception as error:  # timm's models without it fail an assertion, and a user's may raise anything
            reason = first_line(error) or type(error).__name__
            raise InvalidModelError(f"{_shown(config)} can't do it ({reason}); leave it false") from error
    elif not blocks:
        raise InvalidModelError(
            f"{_shown(config)} has no blocks that are known to be computable again; it takes torchvision's models with "
            "repeated blocks, timm's, and your own with a method set_grad_checkpointing(enable)"
        )
    for block in [] if callable(enable) else blocks:
        # No function within this one: a copy of the model, such as the moving average, has to call its own blocks.
        block.forward = partial(_computed_again, block)


@contextmanager
def statistics_kept(layers: Sequence[_BatchNorm]) -> Iterator[None]:
    """Keep BatchNorm's running statistics as they are, while the backward pass sends the same images through again."""
    before = [(layer, layer.momentum, layer.num_batches_tracked) for layer in layers]
    for layer in layers:
        # With this share of the new mean and variance the old ones stay. Layers that don't track any would save fewer
        # tensors than in the forward pass, which torch.utils.checkpoint refuses.
        layer.momentum, layer.num_batches_tracked = 0.0, None
    try:
        yield
    finally:
        for layer, momentum, num_batches in before:
            layer.momentum, layer.num_batches_tracked = momentum, num_batches


def layers_with_statistics(module: nn.Module, config: ModelConfig) -> list[_BatchNorm]:
    """The BatchNorm layers that the backward pass may compute again; none where all activations are kept."""
    is_recomputed = config.checkpoint_activations or getattr(config, "memory_efficient", False)
    return [layer for layer in module.modules() if isinstance(layer, _BatchNorm)] if is_recomputed else []


def _computed_again(block: nn.Module, inputs: Any) -> Any:  # noqa: ANN401 - a tensor, or a DenseNet's list of tensors
    forward = partial(type(block).forward, block)
    if not torch.is_grad_enabled():
        return forward(inputs)
    # A DenseNet appends to its list afterwards.
    return checkpoint(forward, list(inputs) if isinstance(inputs, list) else inputs, use_reentrant=False)


def _shown(config: ModelConfig) -> str:
    return f"model.checkpoint_activations = true: {config.name}"
