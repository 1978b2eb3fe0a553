"""Builds the optimizer of the group `optimizer`."""

from __future__ import annotations

import difflib
import fnmatch
import importlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any, assert_never

import torch
from torch import nn

from runner.base.errors import CheckpointError, ConfigError, MissingPackageError, Problem, how_to_install
from runner.config.schema.optimizer import (
    AdamWConfig,
    GroupRule,
    LAMBConfig,
    LARSConfig,
    MuonConfig,
    OptimizerConfig,
    SGDConfig,
)

# The state entries of a parameter after its first step, by the class of the optimizer; Muon has two kinds of them.
_MOMENTUM, _MOMENTS = frozenset({"momentum_buffer"}), frozenset({"exp_avg", "exp_avg_sq"})
_ENTRIES = {
    "SGD": (_MOMENTUM,),
    "AdamW": (_MOMENTS | {"step"},),
    "Lars": (_MOMENTUM,),
    "Lamb": (_MOMENTS,),
    "Muon": (_MOMENTUM, _MOMENTS | {"step"}),
}
# Optimizers that count steps in their groups, which have all taken the same number of steps.
_COUNT_BY_GROUP = frozenset({"Lamb"})
_STEP_OF_GROUPS = "*/step"
# Devices on which torch has a fused step; elsewhere torch chooses the implementation.
_FUSED_DEVICES = frozenset({"cpu", "cuda"})
_NUM_NEAR = 3


def peak_learning_rate(config: OptimizerConfig, world_size: int) -> float:
    """The learning rate after warm-up: lr × world size where scaling is linear (Goyal et al. 2017), else lr."""
    return config.lr * world_size if config.lr_scaling == "linear" else config.lr


@dataclass(frozen=True, kw_only=True)
class ParameterGroup:
    """Parameters with the same learning rate and weight decay, by the same rule."""

    rule: str
    """What puts parameters into this group, in words."""
    names: tuple[str, ...]
    """Of the parameters, in the model's order."""
    lr_multiplier: float
    """Factor on the learning rate of the schedule."""
    weight_decay: float


def group_parameters_of(
    config: OptimizerConfig,
    module: nn.Module,
    *,
    head: Collection[str] = (),
    layers: Mapping[str, int] | None = None,
) -> list[ParameterGroup]:
    """The groups of parameters, by the rules of optimizer.groups and optimizer.layer_decay.

    The first rule that matches a parameter applies to it, as in big_vision's `lr_mults`. A layer's rate is that of
    timm.optim.param_groups_layer_decay: layer_decay to the power of the number of layers after it.

    Args:
        config: the group `optimizer`.
        module: only names and shapes of its parameters are read.
        head: names of the head's parameters; needed where a rule says head or backbone.
        layers: layer of each parameter by name, the largest for the head; needed with optimizer.layer_decay.

    Returns:
        The groups, none of them empty. Without rules or layers: first the parameters of more than one dimension, then
        the others (biases, normalisation), which have no weight decay unless optimizer.decay_norm_and_bias is set.

    Raises:
        ConfigError: with each rule that matches nothing, or nothing that an earlier rule has not matched.
    """
    parameters = dict(module.named_parameters())
    matches = [_matched(rule, parameters, head) for rule in config.groups]
    _check_rules(config, matches, list(parameters))
    found: dict[tuple[int, int, float], list[str]] = {}
    # Sorted, so that the decayed parameters come first.
    for name in sorted(parameters, key=lambda name: _is_spared(config, parameters[name])):
        number = next((number for number, matched in enumerate(matches) if name in matched), len(matches))
        own = config.groups[number].weight_decay if number < len(matches) else None
        usual = 0.0 if _is_spared(config, parameters[name]) else config.weight_decay
        layer = layers.get(name, max(layers.values())) if layers and config.layer_decay is not None else 0
        found.setdefault((number, layer, usual if own is None else own), []).append(name)
    groups = sorted(found.items(), key=lambda item: item[0][:2])
    return [_group(config, key, names, layers) for key, names in groups]


def _is_spared(config: OptimizerConfig, parameter: nn.Parameter) -> bool:
    return parameter.ndim <= 1 and not config.decay_norm_and_bias


def _group(
    config: OptimizerConfig, key: tuple[int, int, float], names: list[str], layers: Mapping[str, int] | None
) -> ParameterGroup:
    number, layer, decay = key
    rule = config.groups[number] if number < len(config.groups) else None
    label = "the rest" if config.groups else "all"
    if rule is not None:
        label = f"{number}: {rule.part or rule.pattern}"
    multiplier = 1.0 if rule is None else rule.lr_multiplier
    if layers and config.layer_decay is not None:
        label += f", layer {layer}"
        multiplier *= config.layer_decay ** (max(layers.values()) - layer)
    return ParameterGroup(rule=label, names=tuple(names), lr_multiplier=multiplier, weight_decay=decay)


def _matched(rule: GroupRule, parameters: Mapping[str, nn.Parameter], head: Collection[str]) -> set[str]:
    match rule.part:
        case "head":
            return set(head)
        case "backbone":
            return set(parameters) - set(head)
        case "norm_and_bias":
            return {name for name, parameter in parameters.items() if parameter.ndim <= 1}
        case None:
            return parameters_like(rule.pattern or "", parameters)
        case _:
            assert_never(rule.part)


def _check_rules(config: OptimizerConfig, matches: Sequence[set[str]], names: Sequence[str]) -> None:
    problems, taken = [], set[str]()
    for number, (rule, matched) in enumerate(zip(config.groups, matches, strict=True)):
        key = f"optimizer.groups.{number}.{'part' if rule.pattern is None else 'pattern'}"
        value = rule.part or rule.pattern
        if not matched:
            problems.append(no_such_parameters(value or "", names, key))
        elif matched <= taken:
            message = "matches only parameters that rules before it match, and the first that matches applies"
            hint = "move it to the front, or leave it out"
            problems.append(Problem(key=key, value=value, has_value=True, message=message, hint=hint))
        taken |= matched
    if problems:
        raise ConfigError(problems)


def parameters_like(pattern: str, names: Iterable[str]) -> set[str]:
    """Those of some names of parameters that match a pattern with the wildcards *, ? and [abc]."""
    return {name for name in names if fnmatch.fnmatchcase(name, pattern)}


def no_such_parameters(pattern: str, names: Sequence[str], key: str) -> Problem:
    """What is wrong with a pattern, of this key, that matches none of the model's names of parameters."""
    hint = f"near it: {', '.join(_near(pattern, names))}"
    message = "matches no parameter of the model"
    return Problem(key=key, value=pattern, has_value=True, message=message, hint=hint)


def _near(pattern: str, names: Sequence[str]) -> list[str]:
    """Patterns and names of parameters that resemble a pattern; some names where none does."""
    modules = {f"{'.'.join(parts[:depth])}.*" for parts in (name.split(".") for name in names) for depth in (1, 2, 3)
               if depth < len(parts)}  # fmt: skip
    close = difflib.get_close_matches(pattern, [*sorted(modules), *names], n=_NUM_NEAR, cutoff=0.4)
    return close or [names[0], names[-1]]


def build_optimizer(
    config: OptimizerConfig, module: nn.Module, groups: Sequence[ParameterGroup] | None = None
) -> torch.optim.Optimizer:
    """The optimizer over all parameters of `module`, including those that are frozen at first.

    Args:
        config: the group `optimizer`.
        module: parameters must already be on their device.
        groups: of :func:`group_parameters_of`, by default those without a head and layers.

    Returns:
        An optimizer whose learning rate is set before each step by :func:`set_learning_rate`.
    """
    parameters = list(module.parameters())
    by_name = dict(module.named_parameters())
    param_groups = [
        {
            "params": [by_name[name] for name in group.names],
            "weight_decay": group.weight_decay,
            "lr_multiplier": group.lr_multiplier,
        }
        for group in (group_parameters_of(config, module) if groups is None else groups)
    ]
    device_type = parameters[0].device.type
    common: dict[str, Any] = {"lr": config.lr, "fused": True if device_type in _FUSED_DEVICES else None}
    match config:
        case SGDConfig():
            sgd = torch.optim.SGD(param_groups, momentum=config.momentum, nesterov=config.nesterov, **common)
            if config.momentum:
                # A buffer of zeros gives the same first step as none at all. torch's fused step needs a buffer for
                # every parameter or for none, which fails when parameters of a frozen backbone join later.
                for parameter in parameters:
                    sgd.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)
            return sgd
        case AdamWConfig():
            return torch.optim.AdamW(param_groups, betas=config.betas, eps=config.eps, **common)
        case LARSConfig():
            trust = config.trust_coefficient
            return _of_timm("Lars", config, param_groups, **_momentum_of(config), trust_coeff=trust)
        case LAMBConfig():
            # Gradients are clipped by trainer.clip_norm, as with any other optimizer.
            return _of_timm("Lamb", config, param_groups, betas=config.betas, eps=config.eps, max_grad_norm=None)
        case MuonConfig():
            return _of_timm("Muon", config, param_groups, **_momentum_of(config), betas=config.betas, eps=config.eps)
        case _:
            assert_never(config)


def check_optimizer(config: OptimizerConfig) -> None:
    """Check that the optimizer's library is installed.

    Raises:
        MissingPackageError: it is not; says how to install it.
    """
    if isinstance(config, LARSConfig | LAMBConfig | MuonConfig):
        _timm_optim(config.name)


def _momentum_of(config: LARSConfig | MuonConfig) -> dict[str, object]:
    return {"momentum": config.momentum, "nesterov": config.nesterov}


def _of_timm(name: str, config: OptimizerConfig, param_groups: list[Any], **settings: object) -> torch.optim.Optimizer:
    optimizer: torch.optim.Optimizer = getattr(_timm_optim(config.name), name)(param_groups, lr=config.lr, **settings)
    return optimizer


def _timm_optim(option: str) -> ModuleType:
    try:
        return importlib.import_module("timm.optim")
    except ModuleNotFoundError as error:
        message = f"optimizer={option} needs timm, which is not installed: {how_to_install('timm')}"
        raise MissingPackageError(message) from error


def set_learning_rate(optimizer: torch.optim.Optimizer, learning_rate: float) -> None:
    """Set the rate of each group to the schedule's rate times the group's multiplier."""
    for group in optimizer.param_groups:
        group["lr"] = learning_rate * group["lr_multiplier"]


def named_state(optimizer: torch.optim.Optimizer, module: nn.Module) -> dict[str, torch.Tensor]:
    """The optimizer's state as `<parameter name>/<entry>` → tensor; learning rates belong to the schedule.

    The number of steps that all groups share has the name `*` for that of a parameter.
    """
    names: dict[torch.Tensor, str] = {parameter: name for name, parameter in module.named_parameters()}
    counted = {_STEP_OF_GROUPS: optimizer.param_groups[0]["step"]} if "step" in optimizer.param_groups[0] else {}
    return counted | {
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
    tensors = _with_step_of_groups_loaded(optimizer, tensors)
    state: dict[torch.Tensor, dict[str, torch.Tensor]] = {}
    kinds = _ENTRIES[type(optimizer).__name__]
    for key, value in tensors.items():
        name, _, entry = key.rpartition("/")
        parameter = parameters.get(name)
        shape = torch.Size() if entry == "step" else getattr(parameter, "shape", None)
        is_known = any(entry in kind for kind in kinds)
        if parameter is None or not is_known or value.shape != shape or not value.is_floating_point():
            raise CheckpointError(f"the optimizer state {key} {tuple(value.shape)} fits no parameter of the model")
        # AdamW counts steps in a scalar that is on the CPU unless the step is fused.
        on_cpu = value.ndim == 0 and not optimizer.defaults.get("fused")
        is_channels_last = value.ndim == 4 and parameter.is_contiguous(memory_format=torch.channels_last)
        memory_format = torch.channels_last if is_channels_last else torch.contiguous_format
        loaded = value if on_cpu else value.to(parameter.device, memory_format=memory_format)
        state.setdefault(parameter, {})[entry] = loaded.clone()
    is_whole = all(loaded.keys() in kinds for loaded in state.values())
    # SGD's fused step needs a buffer for every parameter, or for none.
    if not is_whole or (isinstance(optimizer, torch.optim.SGD) and len(state) not in (0, len(parameters))):
        raise CheckpointError(f"the optimizer state lacks entries: a parameter has {_in_words(kinds)}")
    optimizer.state.clear()
    optimizer.state.update(state)


def _in_words(kinds: Iterable[frozenset[str]]) -> str:
    return ", or ".join(" and ".join(sorted(kind)) for kind in kinds)


def _with_step_of_groups_loaded(
    optimizer: torch.optim.Optimizer, tensors: Mapping[str, torch.Tensor]
) -> dict[str, torch.Tensor]:
    """The entries of parameters alone."""
    rest = dict(tensors)
    step = rest.pop(_STEP_OF_GROUPS, None)
    counts_by_group = type(optimizer).__name__ in _COUNT_BY_GROUP
    if (step is not None) != (counts_by_group and bool(tensors)):
        raise CheckpointError(f"the optimizer state {'lacks' if step is None else 'has'} {_STEP_OF_GROUPS}")
    if step is not None and (step.shape or not step.is_floating_point()):
        raise CheckpointError(f"the optimizer state {_STEP_OF_GROUPS} {tuple(step.shape)} is no number of steps")
    for group in optimizer.param_groups:
        group.pop("step", None)
        if step is not None:
            group["step"] = step.clone()
    return rest
