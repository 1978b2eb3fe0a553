"""Checks that a model can be trained as the config says."""

from __future__ import annotations

from torch import nn

from runner.config.schema import Config
from runner.trainer.activations import checkpoint_activations
from runner.trainer.freezing import check_unfreeze
from runner.training.parameter_groups import parameter_groups


def check_trainable(config: Config, module: nn.Module) -> None:
    """Raise what :func:`runner.training.assemble.assemble` would raise of this model, after it was built.

    Args:
        config: complete and checked.
        module: built from `config.model`, on any device; it may be changed.

    Raises:
        ConfigError: a rule of optimizer.groups or trainer.unfreeze matches no parameter.
        InvalidModelError: the model does not tell what a key needs to know of it.
    """
    parameter_groups(config, module)
    check_unfreeze(config.trainer, module)
    checkpoint_activations(module, config.model)
