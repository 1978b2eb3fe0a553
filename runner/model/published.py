"""Weights that torchvision or timm publish by name: where they are, and the preprocessing they were trained with."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from torchvision.models import WeightsEnum

from runner.config.schema.model import ModelConfig, TimmConfig, is_weights_file
from runner.model.catalogue import (
    WeightsPreprocessing,
    cached_path,
    fetch_url,
    torchvision_preprocessing,
    torchvision_weights,
)
from runner.model.timm_models import cached_timm_weights, fetch_timm_weights, published_weights, timm_preprocessing

if TYPE_CHECKING:
    from timm.models import PretrainedCfg


def named_weights(config: ModelConfig) -> WeightsEnum | PretrainedCfg | None:
    """The weights that `config.weights` names; None where training starts from scratch or from a file.

    Raises:
        InvalidModelError: the library has no weights of this name for this architecture.
        MissingPackageError: the library is not installed.
    """
    if config.weights is None or is_weights_file(config.weights):
        return None
    return published_weights(config) if isinstance(config, TimmConfig) else torchvision_weights(config)


def weights_preprocessing(config: ModelConfig) -> WeightsPreprocessing | None:
    """The preprocessing of the weights that `config.weights` names; None for a file or null.

    Raises:
        InvalidModelError, MissingPackageError: as :func:`named_weights`.
    """
    weights = named_weights(config)
    if weights is None:
        return None
    return torchvision_preprocessing(weights) if isinstance(weights, WeightsEnum) else timm_preprocessing(weights)


def cached_weights(weights: WeightsEnum | PretrainedCfg) -> Path | None:
    """The file of named weights, if it is in the cache of its library."""
    if not isinstance(weights, WeightsEnum):
        return cached_timm_weights(weights)
    path = cached_path(weights.url)
    return path if path.exists() else None


def fetch(weights: WeightsEnum | PretrainedCfg, *, may_download: bool = True) -> Path:
    """The file of named weights, downloaded into the cache of its library if it is missing and `may_download`.

    Raises:
        InvalidModelError: when it is missing and may not or can't be downloaded; names the file and where it goes.
    """
    if isinstance(weights, WeightsEnum):
        return fetch_url(weights.url, weights.name, may_download=may_download)
    return fetch_timm_weights(weights, may_download=may_download)
