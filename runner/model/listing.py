"""Lists the architectures that can be trained: torchvision's, timm's and those of installed packages."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from importlib.metadata import entry_points
from typing import Literal, assert_never

from torchvision import models

from runner.base.errors import MissingPackageError, RunnerError
from runner.config.schema.model import ModelConfig, TimmConfig, TorchvisionConfig
from runner.model.catalogue import torchvision_preprocessing
from runner.model.check import without_values
from runner.model.custom import GROUP
from runner.model.timm_models import timm_package

Source = Literal["torchvision", "timm", "custom"]
SOURCES: tuple[Source, ...] = ("torchvision", "timm", "custom")
_NUM_CLASSES = 1000


@dataclass(frozen=True, kw_only=True)
class Architecture:
    """One architecture; numbers are None where only its own code knows them."""

    name: str
    source: Source
    """The option of the group `model`; torchvision's ResNets and DenseNets have options of their own too."""
    num_parameters: int | None
    """With a head of 1,000 classes."""
    image_size: int | None
    """Side in px of the square images that its weights, or else the architecture, are made for."""
    weights: tuple[str, ...]
    """Names of the published weights: of torchvision a value of `model.weights`, of timm a tag of the name."""


def names_like(pattern: str, source: Source | None) -> list[tuple[Source, str]]:
    """The names that match a shell pattern, with their source; of timm none where it is not installed.

    Raises:
        MissingPackageError: timm is asked for and not installed.
    """
    return [
        (each, name)
        for each in ([source] if source is not None else SOURCES)
        for name in _names(each, is_asked_for=source is not None)
        if fnmatchcase(name, pattern)
    ]


def describe(source: Source, name: str) -> Architecture:
    """Describe one architecture; its parameters are counted on the meta device, where they take no memory."""
    match source:
        case "torchvision":
            offered = [one for one in models.get_model_weights(name) if one.meta["categories"]]
            config: ModelConfig = TorchvisionConfig(
                family="torchvision", name=name, weights=None, average_flips=False, checkpoint_activations=False
            )
            size = torchvision_preprocessing(offered[0]).crop_size if offered else None
            weights = tuple(one.name for one in offered)
        case "timm":
            timm = timm_package()
            config = TimmConfig(
                family="timm",
                name=name,
                weights=None,
                average_flips=False,
                checkpoint_activations=False,
                drop_rate=None,
                drop_path_rate=None,
                global_pool=None,
                img_size=None,
            )
            published = timm.get_pretrained_cfg(name)
            size = published.input_size[-1] if published is not None else None
            tagged = timm.list_models(f"{name}.*", pretrained=True)
            weights = tuple(one.partition(".")[2] for one in tagged)
        case "custom":
            return Architecture(name=name, source=source, num_parameters=None, image_size=None, weights=())
        case _:
            assert_never(source)
    return Architecture(
        name=name, source=source, num_parameters=_num_parameters(config), image_size=size, weights=weights
    )


def _names(source: Source, *, is_asked_for: bool) -> Iterator[str]:
    match source:
        case "torchvision":
            yield from models.list_models(module=models)
        case "timm":
            try:
                yield from timm_package().list_models()
            except MissingPackageError:
                if is_asked_for:
                    raise
        case "custom":
            yield from sorted(entry_points(group=GROUP).names)
        case _:
            assert_never(source)


def _num_parameters(config: ModelConfig) -> int | None:
    try:
        module = without_values(config, _NUM_CLASSES)
    except RunnerError:  # a model that needs more than its name
        return None
    return sum(parameter.numel() for parameter in module.parameters())
