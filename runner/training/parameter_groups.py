"""The optimizer's groups of parameters for a model: found with its head and its layers, and shown as a table."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from torch import nn

from runner.base.console import LOGGER
from runner.config.schema import Config
from runner.model import head_of, order_layers
from runner.optimizer import ParameterGroup, group_parameters_of


def parameter_groups(config: Config, module: nn.Module) -> list[ParameterGroup]:
    """The groups by `optimizer.groups` and `optimizer.layer_decay`.

    Args:
        config: complete and checked.
        module: built from `config.model`; on any device, the meta device too.

    Raises:
        ConfigError: a rule matches no parameter, or only those of rules before it.
        InvalidModelError: a rule needs the head, or the decay the order of the layers, which the model does not tell.
    """
    optimizer = config.optimizer
    needs_head = any(rule.part in ("head", "backbone") for rule in optimizer.groups)
    learning = {id(parameter) for parameter in head_of(module, config.model).parameters()} if needs_head else set()
    return group_parameters_of(
        optimizer,
        module,
        head={name for name, parameter in module.named_parameters() if id(parameter) in learning},
        layers=order_layers(module, config.model) if optimizer.layer_decay is not None else None,
    )


def log_groups(groups: Sequence[ParameterGroup], module: nn.Module, peak: float) -> None:
    """Log the groups, one a line.

    Args:
        groups: of `module`.
        module: only shapes of its parameters are read.
        peak: the learning rate after warm-up, before the groups' multipliers.
    """
    for line in _table(groups, module, peak):
        LOGGER.info("%s", line)


def _table(groups: Sequence[ParameterGroup], module: nn.Module, peak: float) -> Iterator[str]:
    sizes = {name: parameter.numel() for name, parameter in module.named_parameters()}
    width = max(len("group"), *(len(group.rule) for group in groups))
    yield f"parameters  {'group':{width}}  tensors      numbers  peak rate  weight decay"
    for group in groups:
        count, rate = sum(sizes[name] for name in group.names), f"{peak * group.lr_multiplier:.3g}"
        label = f"            {group.rule:{width}}"
        yield f"{label}  {len(group.names):7}  {count:11,}  {rate:>9}  {group.weight_decay:12g}"
