"""The order of a model's layers, from the input to the head."""

from __future__ import annotations

import re
from collections.abc import Callable

from torch import nn
from torchvision import models

from runner.base.errors import InvalidModelError, MissingPackageError
from runner.config.schema.model import ModelConfig

# A stage's number is in the first group that matched; other parameters but those of the head are the stem's.
_RESNET_STAGES = re.compile(r"layer(\d)\.")
_DENSENET_STAGES = re.compile(r"features\.(?:denseblock|transition)(\d)\.|features\.norm(5)\.")
_NUM_STAGES = 4


def order_layers(module: nn.Module, config: ModelConfig) -> dict[str, int]:
    """The layer of each parameter: 0 nearest to the input, the largest number for the head.

    A module with the method `group_matcher`, as timm's models have it, is ordered by timm's `group_parameters`, in the
    groups that timm's layer-wise decay (`timm.optim.param_groups_layer_decay`) uses. torchvision's ResNets and
    DenseNets have six layers: the stem, four stages (of a DenseNet each with the transition after it, the last with
    norm5) and the head.

    Args:
        module: built from `config`; on any device.
        config: the group `model`, for messages.

    Returns:
        Layers by parameter name.

    Raises:
        InvalidModelError: the model has no known order.
        MissingPackageError: timm, which reads the order, is not installed.
    """
    matcher = getattr(module, "group_matcher", None)
    if callable(matcher):
        return _by_timm(module, matcher, config)
    match module:
        case models.ResNet():
            return _by_stage(module, _RESNET_STAGES, "fc.")
        case models.DenseNet():
            return _by_stage(module, _DENSENET_STAGES, "classifier.")
    raise InvalidModelError(
        f"model.name = {config.name!r}: optimizer.layer_decay needs the order of the layers, which is known "
        f"of ResNets, DenseNets and models with timm's method group_matcher, and not of {type(module).__name__}; "
        "without it, optimizer.groups gives parts of a model a rate of their own"
    )


def _by_timm(module: nn.Module, matcher: Callable[..., object], config: ModelConfig) -> dict[str, int]:
    try:
        from timm.models import group_parameters  # noqa: PLC0415 - an optional part
    except ModuleNotFoundError as error:
        raise MissingPackageError(
            f"model.name = {config.name!r}: optimizer.layer_decay needs timm, which reads the model's group_matcher: "
            "pip install timm"
        ) from error
    found: dict[str, int] = group_parameters(module, matcher(coarse=False), reverse=True)
    return found


def _by_stage(module: nn.Module, stages: re.Pattern[str], head: str) -> dict[str, int]:
    found = {}
    for name, _ in module.named_parameters():
        stage = stages.match(name)
        number = 0 if stage is None else min(_NUM_STAGES, int(next(filter(None, stage.groups()))))
        found[name] = _NUM_STAGES + 1 if name.startswith(head) else number
    return found
