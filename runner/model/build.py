"""Builds the model that training starts with."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from torch import nn
from torchvision.models import WeightsEnum

from runner.config.schema.model import ModelConfig
from runner.model.architectures import build_architecture
from runner.model.catalogue import WeightsPreprocessing
from runner.model.fit import load_into
from runner.model.published import fetch, named_weights, weights_preprocessing
from runner.model.state_dict import read_weights_file
from runner.model.timm_models import warn_of_other_crops

StartingWeights = Literal["download", "local", "none"]


@dataclass(frozen=True, kw_only=True)
class BuiltModel:
    """A model to train: fp32, on the CPU, in training mode, (batch, channels, height, width) → (batch, num_classes)."""

    module: nn.Module
    preprocessing: WeightsPreprocessing | None
    """What the weights were trained with; only for weights that a library has by name."""


def build_model(
    config: ModelConfig, num_classes: int, weights: StartingWeights = "download", *, num_channels: int = 3
) -> BuiltModel:
    """Build the architecture and load `config.weights` into it.

    All random values (every parameter for null; with weights the new head and a small stem) come from torch's global
    generator, so the same seed gives the same bits. Weights that a library has by name always get a new head; a file
    gets one only if its own head does not fit the number of classes.

    Args:
        config: the group `model`.
        num_classes: number of classes of the data.
        weights: `download` named weights if they are missing, require them in torch's cache (`local`), or load no
            weights (`none`), as for a resumed run, whose checkpoint has all values.
        num_channels: of the images.

    Raises:
        InvalidModelError: the model can't be built; weights can't be downloaded or read, or don't fit.
    """
    module = build_architecture(config, num_classes, num_channels)
    named = named_weights(config)
    if weights != "none" and named is not None:
        path = fetch(named, may_download=weights == "download")
        load_into(module, read_weights_file(path), config, fresh_head=True)
        if not isinstance(named, WeightsEnum):
            warn_of_other_crops(named)
    elif weights != "none" and config.weights is not None:
        load_into(module, read_weights_file(Path(config.weights)), config, fresh_head=False)
    return BuiltModel(module=module, preprocessing=weights_preprocessing(config))
