"""The model as training starts with it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from torch import nn

from runner.config.schema.model import ModelConfig
from runner.model.architectures import build_architecture
from runner.model.catalogue import WeightsPreprocessing, torchvision_weights, weights_preprocessing
from runner.model.download import fetch
from runner.model.fit import load_into
from runner.model.state_dict import read_weights_file

StartingWeights = Literal["download", "local", "none"]


@dataclass(frozen=True, kw_only=True)
class BuiltModel:
    """A model to train: fp32, on the CPU, in training mode, (batch, 3, height, width) → (batch, num_classes)."""

    module: nn.Module
    preprocessing: WeightsPreprocessing | None
    """What the weights were made with; only for weights that torchvision has by name."""


def build_model(config: ModelConfig, num_classes: int, weights: StartingWeights = "download") -> BuiltModel:
    """Build the architecture and start it from `config.weights`.

    Everything random (all of it for null; the head, and a small stem, with weights) is drawn from torch's global
    generator, so the same seed gives the same bits. With a torchvision weights name the head is always replaced; a file
    whose head fits is loaded whole, one with a head of another class count gets a new head.

    Args:
        config: the model.
        num_classes: number of classes of the data.
        weights: whether named weights may be downloaded, or have to be in torch's cache, or no weights are needed, as
            where a checkpoint has all values anyway.

    Raises:
        InvalidModelError: for a model that can't be built, weights that can't be got, read or fitted.
    """
    module = build_architecture(config, num_classes)
    named = torchvision_weights(config)
    if weights != "none" and named is not None:
        path = fetch(named, may_download=weights == "download")
        load_into(module, read_weights_file(path), config, fresh_head=True)
    elif weights != "none" and config.weights is not None:
        load_into(module, read_weights_file(Path(config.weights)), config, fresh_head=False)
    return BuiltModel(module=module, preprocessing=weights_preprocessing(config))
