"""Builds users' own models, which installed packages offer as entry points of the group `runner.models`."""

from __future__ import annotations

import inspect
from collections.abc import Callable

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from runner.base.errors import InvalidModelError
from runner.config.schema.checks.parts import UnusablePartError, find_entry_point
from runner.config.schema.model import CustomConfig

GROUP = "runner.models"


def build_custom_model(config: CustomConfig, num_classes: int, num_channels: int = 3) -> nn.Module:
    """Call the factory behind the entry point `config.name` as `factory(num_classes, **config.arguments)`.

    A factory declares that it takes other channels than 3 by a parameter `num_channels`, which is given then; or
    model.arguments give it.

    Returns:
        The factory's module, moved to the CPU, in fp32, in training mode. It must map float images of shape
        (batch, num_channels, height, width) to scores of shape (batch, num_classes), on the CPU too, where
        `check_model` runs it.

    Raises:
        InvalidModelError: the entry point is not installed or can't be imported; the factory takes images of 3
            channels only, raises an error (the cause of this one) or returns something that can't be trained.
    """
    try:
        entry_point = find_entry_point(GROUP, config.name)
    except UnusablePartError as error:
        raise InvalidModelError(f"model.name = {config.name!r}: {error}") from error
    shown = f"model.name = {config.name!r} ({GROUP}: {entry_point.value})"
    try:
        factory = entry_point.load()
    except Exception as error:
        raise InvalidModelError(f"{shown} can't be imported: {type(error).__name__}: {error}") from error
    if not callable(factory):
        raise InvalidModelError(
            f"{shown} is a {type(factory).__name__}; it must be a function (num_classes, **arguments)"
        )
    arguments = dict(config.arguments)
    if num_channels != 3 and "num_channels" not in arguments:
        _check_declares_channels(factory, num_channels, shown)
        arguments["num_channels"] = num_channels
    try:
        module = factory(num_classes, **arguments)
    except Exception as error:
        received = ", ".join([str(num_classes), *(f"{key}={value!r}" for key, value in arguments.items())])
        raise InvalidModelError(
            f"{shown}, called with ({received}), failed: {type(error).__name__}: {error}"
        ) from error
    if not isinstance(module, nn.Module):
        raise InvalidModelError(f"{shown} returned a {type(module).__name__}; it must return a torch.nn.Module")
    _check_trainable(module, shown)
    return module.to("cpu").float().train()


def _check_declares_channels(factory: Callable[..., object], num_channels: int, shown: str) -> None:
    try:
        declares = "num_channels" in inspect.signature(factory).parameters
    except (TypeError, ValueError):  # of a function in C
        declares = False
    if not declares:
        raise InvalidModelError(
            f"{shown} takes images of 3 channels, not data.channels = {num_channels}: for others it must have a "
            "parameter num_channels"
        )


def _check_trainable(module: nn.Module, shown: str) -> None:
    parameters = dict(module.named_parameters())
    if not parameters:
        raise InvalidModelError(
            f"{shown} returned a {type(module).__name__} without parameters: nothing can be trained"
        )
    lazy = [name for name, parameter in parameters.items() if is_lazy(parameter)]
    if lazy:
        raise InvalidModelError(
            f"{shown} returned lazy layers without a size ({', '.join(lazy[:5])}); "
            "run one batch through the model inside the function"
        )
    unmaterialised = [name for name, parameter in parameters.items() if parameter.device == torch.device("meta")]
    if unmaterialised:
        raise InvalidModelError(
            f"{shown} returned layers on the meta device, which hold no values ({', '.join(unmaterialised[:5])})"
        )
