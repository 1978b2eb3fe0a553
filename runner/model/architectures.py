"""From a checked config to an architecture with fresh weights, with torchvision's own state-dict keys."""

from __future__ import annotations

from typing import Any, assert_never

from torch import nn
from torchvision import models

from runner.config.schema.model import CustomConfig, DenseNetConfig, ModelConfig, ResNetConfig, TorchvisionConfig
from runner.model.catalogue import check_classifier_name, torchvision_weights
from runner.model.custom import build_custom_model
from runner.model.small_stem import use_small_stem


def build_architecture(config: ModelConfig, num_classes: int) -> nn.Module:
    """Build the architecture with random weights drawn from torch's global generator; reads no weights.

    With `stem=imagenet` the state dict has exactly the keys and shapes of torchvision's model of the same name; with
    `stem=small` only the shape of the first convolution differs. GoogLeNet and Inception v3 come without auxiliary
    heads, so every model returns one float tensor of shape (batch, num_classes), in training too.

    Sizes of images are the architecture's business: a vision transformer takes one size only (224 px from scratch,
    with weights the size that those were made with), MaxViT 224 px, Inception v3 at least 75 px, AlexNet 63 px.
    `check_model` with an image size tells.

    Raises:
        InvalidModelError: for a name that nobody offers, or a custom model that can't be built.
    """
    module: nn.Module
    match config:
        case ResNetConfig():
            zero_init = config.zero_init_residual
            module = models.get_model(config.name, weights=None, num_classes=num_classes, zero_init_residual=zero_init)
            if config.stem == "small":
                use_small_stem(module)
        case DenseNetConfig():
            efficient = config.memory_efficient
            module = models.get_model(config.name, weights=None, num_classes=num_classes, memory_efficient=efficient)
            if config.stem == "small":
                use_small_stem(module)
        case TorchvisionConfig():
            check_classifier_name(config.name)
            module = models.get_model(config.name, weights=None, num_classes=num_classes, **_arguments(config))
        case CustomConfig():
            module = build_custom_model(config, num_classes)
        case _:
            assert_never(config)
    return module


def _arguments(config: TorchvisionConfig) -> dict[str, Any]:
    """What the architecture takes beside its defaults; torchvision's builders set the same when given weights."""
    if config.name in ("googlenet", "inception_v3"):
        # torchvision's weights expect inputs in [-1, 1]; `transform_input` converts from ImageNet's normalisation.
        # Of a local file nobody knows; it is taken as made for the normalisation of the data.
        transform_input = torchvision_weights(config) is not None
        return {"aux_logits": False, "init_weights": True, "transform_input": transform_input}
    if config.name.startswith("vit_") and (weights := torchvision_weights(config)) is not None:
        return {"image_size": weights.meta["min_size"][0]}
    if config.name.startswith("maxvit_") and (weights := torchvision_weights(config)) is not None:
        return {"input_size": weights.meta["min_size"]}
    return {}
