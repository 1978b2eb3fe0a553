"""torchvision's classifiers and named weights: lookup, download, and the preprocessing they were trained with."""

from __future__ import annotations

import difflib
import logging
import math
import re
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from typing import Literal, cast

import torch.hub
from torchvision import models
from torchvision.models import WeightsEnum

from runner.base.errors import InvalidModelError
from runner.base.files import locked
from runner.base.reasons import reason_of
from runner.config.schema.model import CustomConfig, ModelConfig, is_weights_file

Interpolation = Literal["bilinear", "bicubic", "nearest"]

_logger = logging.getLogger("runner")


@dataclass(frozen=True, kw_only=True)
class WeightsPreprocessing:
    """The evaluation preprocessing that torchvision and timm publish with weights.

    Resize the shorter side to `resize_size` px with `interpolation` (antialiased), cut `crop_size`×`crop_size` px from
    the centre, scale to [0, 1], subtract `mean` and divide by `std` per RGB channel.
    """

    resize_size: int
    crop_size: int
    mean: tuple[float, float, float]
    std: tuple[float, float, float]
    interpolation: Interpolation


def check_classifier_name(name: str) -> None:
    """Check that a name is one of torchvision's image classifiers.

    Raises:
        InvalidModelError: with the nearest names; for a model of another task with the name of that task.
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

    Forms of a name are IMAGENET1K_V1, ResNet18_Weights.IMAGENET1K_V1 and DEFAULT (torchvision's newest).

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
    # Weights without categories are backbones for other tasks: their files hold NaN in the layers before the head.
    usable = [name for name, member in offered.__members__.items() if member.meta["categories"]]
    if version not in usable:
        raise InvalidModelError(
            f"{shown}: torchvision has no such classifier weights for {config.name}; allowed: {', '.join(usable)}"
        )
    return cast(WeightsEnum, offered[version])


def torchvision_preprocessing(weights: WeightsEnum) -> WeightsPreprocessing:
    """The evaluation preprocessing that torchvision publishes with weights."""
    preset = weights.transforms()
    return WeightsPreprocessing(
        resize_size=preset.resize_size[0],
        crop_size=preset.crop_size[0],
        mean=tuple(preset.mean),
        std=tuple(preset.std),
        interpolation=preset.interpolation.value,
    )


def cached_path(url: str) -> Path:
    """The path in torch.hub's cache of the weights at an address, whether the file exists or not."""
    return Path(torch.hub.get_dir(), "checkpoints", url.rpartition("/")[2])


def fetch_url(url: str, name: str, *, may_download: bool = True) -> Path:
    """The weights at an address, downloaded into torch.hub's cache if they are missing and `may_download`.

    One process downloads, others wait for it; torch.hub writes to a temporary file and renames it. A file in the cache
    is not checked; a download is checked by torch.hub against the start of its SHA-256 in the file name.

    Args:
        url: where a library publishes them.
        name: the value of `model.weights` that stands for them.
        may_download: whether they may be downloaded.

    Raises:
        InvalidModelError: when it is missing and may not or can't be downloaded; names URL, file and folder.
    """
    path = cached_path(url)
    if path.exists():
        return path
    if not may_download:
        raise InvalidModelError(
            f"model.weights = {name!r}: they are not in {path.parent}, and a saved config downloads nothing; "
            f"type model.weights={name} to download {url}, or place it there as {path.name}"
        )
    digest = re.search(r"-([a-f0-9]+)\.", path.name)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with locked(path.with_name(f".{path.name}.lock"), wait_seconds=math.inf):
            if path.exists():  # another process has downloaded it meanwhile
                return path
            _logger.info("downloading %s to %s", url, path)
            hash_prefix = digest[1] if digest else None
            torch.hub.download_url_to_file(url, str(path), hash_prefix=hash_prefix, progress=False)
    except (OSError, HTTPException, RuntimeError) as error:  # no connection or full disk; cut off; another SHA-256
        raise InvalidModelError(
            f"model.weights = {name!r}: {url} can't be downloaded: {reason_of(error)}; "
            f"fetch it on a machine that can and place it as {path.name} in {path.parent}, or give the path of a file"
        ) from error
    return path
