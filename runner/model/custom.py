"""The user's own models: the only door is the Python entry point group `runner.models` of an installed package."""

from __future__ import annotations

import difflib
from importlib.metadata import EntryPoint, entry_points

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from runner.base.errors import InvalidModelError
from runner.config.schema.model import CustomConfig

GROUP = "runner.models"


def build_custom_model(config: CustomConfig, num_classes: int) -> nn.Module:
    """Call the factory behind the entry point `config.name` as `factory(num_classes, **config.arguments)`.

    Returns:
        The factory's module, moved to the CPU, in fp32, in training mode. It must map float images of shape
        (batch, 3, height, width) to scores of shape (batch, num_classes), on the CPU too: there it is checked.

    Raises:
        InvalidModelError: when no such entry point is installed, when it can't be imported, when the factory raises
            (kept as the cause), or when what it returns can't be trained.
    """
    entry_point = _find(config.name)
    shown = f"model.name = {config.name!r} ({GROUP}: {entry_point.value})"
    try:
        factory = entry_point.load()
    except Exception as error:
        raise InvalidModelError(f"{shown} can't be imported: {type(error).__name__}: {error}") from error
    if not callable(factory):
        raise InvalidModelError(
            f"{shown} is a {type(factory).__name__}; it must be a function (num_classes, **arguments)"
        )
    try:
        module = factory(num_classes, **config.arguments)
    except Exception as error:
        received = ", ".join([str(num_classes), *(f"{key}={value!r}" for key, value in config.arguments.items())])
        raise InvalidModelError(
            f"{shown}, called with ({received}), failed: {type(error).__name__}: {error}"
        ) from error
    if not isinstance(module, nn.Module):
        raise InvalidModelError(f"{shown} returned a {type(module).__name__}; it must return a torch.nn.Module")
    _check_trainable(module, shown)
    return module.to("cpu").float().train()


def _find(name: str) -> EntryPoint:
    installed = entry_points(group=GROUP)
    # The same package may be found twice, as an editable install and on the path.
    found = {point.value: point for point in installed if point.name == name}
    if len(found) > 1:
        raise InvalidModelError(
            f"model.name = {name!r} is offered more than once under the entry point group {GROUP}: "
            f"{', '.join(sorted(found))}; uninstall or rename one"
        )
    if not found:
        names = sorted(installed.names)
        close = difflib.get_close_matches(name, names, n=1)
        listed = f"there are {', '.join(names)}" if names else "none is installed"
        raise InvalidModelError(
            f"model.name = {name!r}: no installed package offers it under the entry point group {GROUP}; {listed}"
            + (f"; did you mean {close[0]}?" if close else "")
        )
    return next(iter(found.values()))


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
