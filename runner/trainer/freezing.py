"""Which parameters learn in an epoch, by trainer.freeze_backbone_epochs and trainer.unfreeze."""

from __future__ import annotations

from collections.abc import Collection

from torch import nn

from runner.base.errors import ConfigError
from runner.config.schema.trainer import TrainerConfig
from runner.optimizer import no_such_parameters, parameters_like


def check_unfreeze(trainer: TrainerConfig, module: nn.Module) -> None:
    """Check that each rule of trainer.unfreeze matches a parameter of the model, of which only names are read.

    Raises:
        ConfigError: with each rule that matches none.
    """
    names = [name for name, _ in module.named_parameters()]
    problems = [
        no_such_parameters(rule.pattern, names, f"trainer.unfreeze.{number}.pattern")
        for number, rule in enumerate(trainer.unfreeze)
        if not parameters_like(rule.pattern, names)
    ]
    if problems:
        raise ConfigError(problems)


def learning_names(
    trainer: TrainerConfig, module: nn.Module, head: nn.Module | None, epoch: int
) -> frozenset[str] | None:
    """Names of the parameters that learn in an epoch, counted from 0; None where all learn.

    Args:
        trainer: the group `trainer`.
        module: the whole model.
        head: its classification head; needed with trainer.freeze_backbone_epochs.
        epoch: from 0.
    """
    if epoch >= trainer.freeze_backbone_epochs:
        return None
    assert head is not None, "a backbone is frozen, so its head is known"
    of_head = {id(parameter) for parameter in head.parameters()}
    parameters = dict(module.named_parameters())
    learning = {name for name, parameter in parameters.items() if id(parameter) in of_head}
    for rule in trainer.unfreeze:
        if epoch >= rule.after_epochs:
            learning |= parameters_like(rule.pattern, parameters)
    return frozenset(learning)


def set_training_mode(module: nn.Module, head: nn.Module | None, learning: Collection[str] | None) -> None:
    """Put a model into training mode, as a whole or in part.

    What is frozen computes no gradients, its BatchNorm statistics don't change, and it drops nothing out. The head is
    in training mode, and so is each layer all of whose parameters learn.

    Args:
        module: the whole model.
        head: its classification head, where not all of it learns.
        learning: names of the parameters that learn; None for all.
    """
    for name, parameter in module.named_parameters():
        parameter.requires_grad_(learning is None or name in learning)
    module.train(learning is None)
    if learning is None or head is None:
        return
    head.train()
    of_head = {id(parameter) for parameter in head.parameters()}
    for layer in module.modules():
        parameters = list(layer.parameters())
        if all(parameter.requires_grad for parameter in parameters) and any(
            id(parameter) not in of_head for parameter in parameters
        ):
            layer.train()
