"""Builds the optimizer of the group `optimizer`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, assert_never

import torch
from torch import nn

from runner.base.errors import CheckpointError
from runner.config.schema.optimizer import AdamWConfig, OptimizerConfig, SGDConfig

# What each keeps of a parameter that has learnt.
_ENTRIES = {
    torch.optim.SGD: frozenset({"momentum_buffer"}),
    torch.optim.AdamW: frozenset({"step", "exp_avg", "exp_avg_sq"}),
}
# Devices on which torch has a fused step; elsewhere it chooses by itself.
_FUSED_DEVICES = frozenset({"cpu", "cuda"})


def peak_learning_rate(config: OptimizerConfig, world_size: int) -> float:
    """The rate after warm-up: lr × world size where scaling is linear (Goyal et al. 2017), else lr."""
    return config.lr * world_size if config.lr_scaling == "linear" else config.lr


def build_optimizer(config: OptimizerConfig, module: nn.Module) -> torch.optim.Optimizer:
    """The optimizer over all parameters of `module`, those frozen for now included.

    Args:
        config: the group `optimizer`.
        module: parameters must already be on their device.

    Returns:
        An optimizer whose learning rate is set before each step by the schedule. Parameters of at most one
        dimension (biases, normalisation) form a group of their own without weight decay if the config says so.
    """
    groups = _parameter_groups(config, module.parameters())
    device_type = next(module.parameters()).device.type
    common: dict[str, Any] = {"lr": config.lr, "fused": True if device_type in _FUSED_DEVICES else None}
    match config:
        case SGDConfig():
            sgd = torch.optim.SGD(groups, momentum=config.momentum, nesterov=config.nesterov, **common)
            return _with_momentum_buffers(sgd) if config.momentum else sgd
        case AdamWConfig():
            return torch.optim.AdamW(groups, betas=config.betas, eps=config.eps, **common)
        case _:
            assert_never(config)


def _with_momentum_buffers(optimizer: torch.optim.SGD) -> torch.optim.SGD:
    """Start each buffer at zero, which gives the same first step as none at all.

    torch's fused step can't cope with parameters that join later, as those of a frozen backbone do: it takes a buffer
    for each parameter, or for none.
    """
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            optimizer.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)
    return optimizer


def _parameter_groups(config: OptimizerConfig, parameters: Iterable[nn.Parameter]) -> list[dict[str, Any]]:
    everything = list(parameters)
    if config.decay_norm_and_bias:
        return [{"params": everything, "weight_decay": config.weight_decay}]
    decayed = [parameter for parameter in everything if parameter.ndim > 1]
    spared = [parameter for parameter in everything if parameter.ndim <= 1]
    groups = [
        {"params": decayed, "weight_decay": config.weight_decay},
        {"params": spared, "weight_decay": 0.0},
    ]
    return [group for group in groups if group["params"]]


def named_state(optimizer: torch.optim.Optimizer, module: nn.Module) -> dict[str, torch.Tensor]:
    """The optimizer's state as `<parameter name>/<entry>` → tensor; learning rates belong to the schedule."""
    names: dict[torch.Tensor, str] = {parameter: name for name, parameter in module.named_parameters()}
    return {
        f"{names[parameter]}/{entry}": value
        for parameter, entries in optimizer.state.items()
        for entry, value in entries.items()
        if isinstance(value, torch.Tensor)
    }


def load_named_state(optimizer: torch.optim.Optimizer, module: nn.Module, tensors: Mapping[str, torch.Tensor]) -> None:
    """Put back what :func:`named_state` gave.

    Raises:
        CheckpointError: when a tensor belongs to no parameter or has another shape.
    """
    parameters = dict(module.named_parameters())
    state: dict[torch.Tensor, dict[str, torch.Tensor]] = {}
    entries = _ENTRIES[type(optimizer)]
    for key, value in tensors.items():
        name, _, entry = key.rpartition("/")
        parameter = parameters.get(name)
        shape = torch.Size() if entry == "step" else getattr(parameter, "shape", None)
        if parameter is None or entry not in entries or value.shape != shape or not value.is_floating_point():
            raise CheckpointError(f"the optimizer state {key} {tuple(value.shape)} fits no parameter of the model")
        # AdamW counts steps in a scalar that lives on the CPU unless the step is fused on a GPU.
        on_cpu = value.ndim == 0 and not optimizer.defaults.get("fused")
        kept = value if on_cpu else value.to(parameter.device)
        kept = kept if kept.ndim == 0 else kept.to(memory_format=_memory_format(parameter))
        state.setdefault(parameter, {})[entry] = kept.clone()
    is_whole = all(kept.keys() == entries for kept in state.values())
    # SGD's fused step takes a buffer for each parameter, or for none.
    if not is_whole or (isinstance(optimizer, torch.optim.SGD) and len(state) not in (0, len(parameters))):
        raise CheckpointError(f"the optimizer state lacks entries: a parameter has {', '.join(sorted(entries))}")
    optimizer.state.clear()
    optimizer.state.update(state)


def _memory_format(parameter: torch.Tensor) -> torch.memory_format:
    is_channels_last = parameter.ndim == 4 and parameter.is_contiguous(memory_format=torch.channels_last)
    return torch.channels_last if is_channels_last else torch.contiguous_format
