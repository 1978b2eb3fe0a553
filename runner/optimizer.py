"""Builds the optimizer of the group `optimizer`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, assert_never

import torch
from torch import nn

from runner.base.errors import CheckpointError
from runner.config.schema.optimizer import AdamWConfig, OptimizerConfig, SGDConfig

# The state entries of a parameter after its first step.
_ENTRIES = {
    torch.optim.SGD: frozenset({"momentum_buffer"}),
    torch.optim.AdamW: frozenset({"step", "exp_avg", "exp_avg_sq"}),
}
# Devices on which torch has a fused step; elsewhere torch chooses the implementation.
_FUSED_DEVICES = frozenset({"cpu", "cuda"})


def peak_learning_rate(config: OptimizerConfig, world_size: int) -> float:
    """The learning rate after warm-up: lr × world size where scaling is linear (Goyal et al. 2017), else lr."""
    return config.lr * world_size if config.lr_scaling == "linear" else config.lr


def build_optimizer(config: OptimizerConfig, module: nn.Module) -> torch.optim.Optimizer:
    """The optimizer over all parameters of `module`, including those that are frozen at first.

    Args:
        config: the group `optimizer`.
        module: parameters must already be on their device.

    Returns:
        An optimizer whose learning rate is set before each step by the schedule. Parameters of at most one dimension
        (biases, normalisation) form a second group without weight decay, unless optimizer.decay_norm_and_bias is set.
    """
    parameters = list(module.parameters())
    decayed = [parameter for parameter in parameters if parameter.ndim > 1 or config.decay_norm_and_bias]
    others = [parameter for parameter in parameters if parameter.ndim <= 1 and not config.decay_norm_and_bias]
    groups = [
        {"params": group, "weight_decay": decay}
        for group, decay in ((decayed, config.weight_decay), (others, 0.0))
        if group
    ]
    device_type = parameters[0].device.type
    common: dict[str, Any] = {"lr": config.lr, "fused": True if device_type in _FUSED_DEVICES else None}
    match config:
        case SGDConfig():
            sgd = torch.optim.SGD(groups, momentum=config.momentum, nesterov=config.nesterov, **common)
            if config.momentum:
                # A buffer of zeros gives the same first step as none at all. torch's fused step needs a buffer for
                # every parameter or for none, which fails when parameters of a frozen backbone join later.
                for parameter in (*decayed, *others):
                    sgd.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)
            return sgd
        case AdamWConfig():
            return torch.optim.AdamW(groups, betas=config.betas, eps=config.eps, **common)
        case _:
            assert_never(config)


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
    """Load the result of :func:`named_state`.

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
        # AdamW counts steps in a scalar that is on the CPU unless the step is fused.
        on_cpu = value.ndim == 0 and not optimizer.defaults.get("fused")
        is_channels_last = value.ndim == 4 and parameter.is_contiguous(memory_format=torch.channels_last)
        memory_format = torch.channels_last if is_channels_last else torch.contiguous_format
        loaded = value if on_cpu else value.to(parameter.device, memory_format=memory_format)
        state.setdefault(parameter, {})[entry] = loaded.clone()
    is_whole = all(loaded.keys() == entries for loaded in state.values())
    # SGD's fused step needs a buffer for every parameter, or for none.
    if not is_whole or (isinstance(optimizer, torch.optim.SGD) and len(state) not in (0, len(parameters))):
        raise CheckpointError(f"the optimizer state lacks entries: a parameter has {', '.join(sorted(entries))}")
    optimizer.state.clear()
    optimizer.state.update(state)
