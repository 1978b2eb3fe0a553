"""What torchvision offers by name: classifiers, their weights, and the preprocessing those weights were made with."""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass
from typing import Literal, cast

from torchvision import models
from torchvision.models import WeightsEnum

from runner.base.errors import InvalidModelError
from runner.config.schema.model import CustomConfig, ModelConfig, is_weights_file

Interpolation = Literal["bilinear", "bicubic", "nearest"]


@dataclass(frozen=True, kw_only=True)
class WeightsPreprocessing:
    """The evaluation preprocessing that torchvision publishes with weights.

    Resize the shorter side to `resize_size` px with `interpolation` (antialiased), cut `crop_size`×`crop_size` px from
    the centre, scale to [0, 1], subtract `mean` and divide by `std` per RGB channel.
    """

    resize_size: int
    crop_size: int
    mean: tuple[float, float, float]
    std: tuple[float, float, float]
    interpolation: Interpolation


def check_classifier_name(name: str) -> None:
    """Refuse what is not one of torchvision's image classifiers.

    Raises:
        InvalidModelError: with the nearest names, and for a known model of another task with that task.
    """
    classifiers: list[str] = models.list_models(module=models)
    if name in classifiers:
        return
    close = difflib.get_close_matches(name.lower(), classifiers, n=3, cutoff=0.5)
    hint = f"did you mean {', '.join(close)}?" if close else f"there are {', '.join(classifiers)}"
    if name in models.list_models():
        # Its builder lives in a subpackage named after the task, such as torchvision.models.detection.faster_rcnn.
        task = models.get_model_builder(name).__module__.split(".")[2]
        raise InvalidModelError(
            f"model.name = {name!r} belongs to torchvision.models.{task}; only image classifiers are trained, {hint}"
        )
    raise InvalidModelError(f"model.name = {name!r}: torchvision has no such image classifier; {hint}")


def torchvision_weights(config: ModelConfig) -> WeightsEnum | None:
    """The weights that `config.weights` names; None where training starts from scratch or from a file.

    Allowed are IMAGENET1K_V1, ResNet18_Weights.IMAGENET1K_V1 and DEFAULT (torchvision's newest).

    Raises:
        InvalidModelError: for a name that torchvision does not have for this architecture.
    """
    if config.weights is None or is_weights_file(config.weights):
        return None
    shown = f"model.weights = {config.weights!r}"
    if isinstance(config, CustomConfig):
        raise InvalidModelError(f"{shown}: a custom model starts from null or from a weights file")
    check_classifier_name(config.name)
    offered = models.get_model_weights(config.name)
    match = re.fullmatch(r"(?:(\w+)_Weights\.)?(\w+)", config.weights)
    owner, version = match.groups() if match else (None, "")
    if owner is not None and owner.lower() != config.name:
        raise InvalidModelError(f"{shown}: these are weights of {owner.lower()}, but model.name = {config.name!r}")
    # Weights without categories are features for other tasks: the file holds NaN in the layers before the head.
    usable = [name for name, member in offered.__members__.items() if member.meta["categories"]]
    if version not in usable:
        raise InvalidModelError(
            f"{shown}: torchvision has no such classifier weights for {config.name}; allowed: {', '.join(usable)}"
        )
    return cast(WeightsEnum, offered[version])


def weights_preprocessing(config: ModelConfig) -> WeightsPreprocessing | None:
    """The preprocessing that belongs to `config.weights`; None where those are no weights of torchvision's.

    Raises:
        InvalidModelError: for a name that torchvision does not have for this architecture.
    """
    weights = torchvision_weights(config)
    if weights is None:
        return None
    preset = weights.transforms()
    return WeightsPreprocessing(
        resize_size=preset.resize_size[0],
        crop_size=preset.crop_size[0],
        mean=tuple(preset.mean),
        std=tuple(preset.std),
        interpolation=preset.interpolation.value,
    )
