"""Checks that a model can be trained as the config says."""

from __future__ import annotations

import torch
from torch import nn

from runner.config.schema import Config
from runner.config.schema.transforms import height_and_width
from runner.data.images.build_transform import build_transform
from runner.data.images.stored import InputFormat
from runner.optimizer import check_optimizer
from runner.trainer.activations import checkpoint_activations
from runner.trainer.freezing import check_unfreeze
from runner.trainer.loss.losses import build_loss
from runner.training.parameter_groups import parameter_groups


def check_trainable(config: Config, module: nn.Module) -> None:
    """Raise what :func:`runner.training.assemble.assemble` would raise of this model, after it was built.

    Args:
        config: complete and checked.
        module: built from `config.model`, on any device; it may be changed.

    Raises:
        ConfigError: a rule of optimizer.groups or trainer.unfreeze matches no parameter; a transform or loss of the
            user's own fails on two images.
        InvalidModelError: the model does not tell what a key needs to know of it.
    """
    check_optimizer(config.optimizer)
    parameter_groups(config, module)
    check_unfreeze(config.trainer, module)
    checkpoint_activations(module, config.model)
    _check_users_parts(config)


def _check_users_parts(config: Config) -> None:
    """Call a user's loss and transforms once."""
    if config.trainer.loss != "cross_entropy":
        build_loss(config.trainer)(torch.zeros(2, 3), torch.tensor([0, 1]), None)
    form, size = InputFormat.of(config.data), height_and_width(config.data.image_size)
    image = torch.zeros(form.channels, *size, dtype=torch.uint8 if form.bit_depth == 8 else torch.float32)
    for transform in (*config.data.train_transforms, *config.data.eval_transforms):
        if transform.name == "custom":
            build_transform(transform, form)(image)
