"""Models: architectures, weights and heads, from the config group `model`."""

from __future__ import annotations

from runner.model.architectures import build_architecture, head_of
from runner.model.build import BuiltModel, StartingWeights, build_model
from runner.model.catalogue import WeightsPreprocessing
from runner.model.check import check_model, check_trained, read_trained
from runner.model.layers import order_layers
from runner.model.published import weights_preprocessing
from runner.model.state_dict import with_versions

__all__ = [
    "BuiltModel",
    "StartingWeights",
    "WeightsPreprocessing",
    "build_architecture",
    "build_model",
    "check_model",
    "check_trained",
    "head_of",
    "order_layers",
    "read_trained",
    "weights_preprocessing",
    "with_versions",
]
