"""Builds architectures with random weights and torchvision's state-dict keys; finds heads and replaces stems."""

from __future__ import annotations

from typing import Any, assert_never

import torch
from torch import Tensor, nn
from torch.nn import functional
from torchvision import models

from runner.base.errors import InvalidModelError
from runner.config.schema.model import (
    CustomConfig,
    DenseNetConfig,
    ModelConfig,
    ResNetConfig,
    TimmConfig,
    TorchvisionConfig,
)
from runner.model.catalogue import check_classifier_name, torchvision_weights
from runner.model.custom import build_custom_model
from runner.model.input_channels import adapt_first_layer
from runner.model.timm_models import build_timm_model

# Every classifier of torchvision has exactly one of these attributes, and so have most others.
HEAD_ATTRIBUTES = ("fc", "classifier", "head", "heads")


def build_architecture(config: ModelConfig, num_classes: int, num_channels: int = 3) -> nn.Module:
    """Build the architecture with random weights, drawn from torch's global generator.

    With `stem=imagenet` the state dict has exactly the keys and shapes of torchvision's model of the same name; with
    `stem=small` only the shape of the first convolution differs. GoogLeNet and Inception v3 come without auxiliary
    heads, so every model returns one float tensor of shape (batch, num_classes), in training too.

    Some architectures accept certain image sizes only: a vision transformer one size (224 px from scratch, with weights
    the size they were trained with), MaxViT 224 px, Inception v3 at least 75 px, AlexNet 63 px. `check_model` checks
    the size.

    With other channels than 3 the first layer of torchvision's models is adapted, see
    :mod:`runner.model.input_channels`.

    Raises:
        InvalidModelError: for an unknown name, a model of timm or of the user's that can't be built, or one that takes
            other channels.
        MissingPackageError: for a model of timm where timm is not installed.
    """
    module: nn.Module
    match config:
        case ResNetConfig():
            zero_init = config.zero_init_residual
            module = models.get_model(config.name, weights=None, num_classes=num_classes, zero_init_residual=zero_init)
            if config.stem == "small":
                use_small_stem(module)
            if config.blur_pool:
                blur_before_strides(module)
            adapt_first_layer(module, num_channels, _shown(config))
        case DenseNetConfig():
            efficient = config.memory_efficient
            module = models.get_model(config.name, weights=None, num_classes=num_classes, memory_efficient=efficient)
            if config.stem == "small":
                use_small_stem(module)
            adapt_first_layer(module, num_channels, _shown(config))
        case TorchvisionConfig():
            check_classifier_name(config.name)
            module = models.get_model(config.name, weights=None, num_classes=num_classes, **_arguments(config))
            adapt_first_layer(module, num_channels, _shown(config))
        case TimmConfig():
            module = build_timm_model(config, num_classes, num_channels)
        case CustomConfig():
            module = build_custom_model(config, num_classes, num_channels)
        case _:
            assert_never(config)
    if config.average_flips:
        module.register_forward_hook(_average_flips)
    return module


def _average_flips(module: nn.Module, images: tuple[Tensor], scores: Tensor) -> Tensor:
    """The mean of the scores of images and of their mirror images, unless a part of the model is being trained."""
    if any(layer.training for layer in module.modules()):
        return scores
    mirrored: Tensor = module.forward(images[0].flip(-1))
    return (scores + mirrored) / 2


def _shown(config: ModelConfig) -> str:
    return f"model.name = {config.name!r}"


def _arguments(config: TorchvisionConfig) -> dict[str, Any]:
    """Arguments that torchvision's builders set by themselves when they are given weights."""
    if config.name in ("googlenet", "inception_v3"):
        # torchvision's weights expect inputs in [-1, 1]; `transform_input` converts from ImageNet's normalisation.
        # A local file is assumed to be trained with the normalisation of the data.
        transform_input = torchvision_weights(config) is not None
        return {"aux_logits": False, "init_weights": True, "transform_input": transform_input}
    if config.name.startswith("vit_") and (weights := torchvision_weights(config)) is not None:
        return {"image_size": weights.meta["min_size"][0]}
    if config.name.startswith("maxvit_") and (weights := torchvision_weights(config)) is not None:
        return {"input_size": weights.meta["min_size"]}
    return {}


def find_head_names(module: nn.Module) -> tuple[str, ...]:
    """The dotted names of the layers of the head, such as `fc` or `classifier.6`; none where it is ambiguous.

    A model of timm names them itself: two for a model that is distilled. Else the head is the last linear or 2-d
    convolution layer under the one attribute of `module` that is called fc, classifier, head or heads; where there is
    no such layer under it, the whole attribute.
    """
    if declared := (getattr(module, "pretrained_cfg", None) or {}).get("classifier"):
        return (declared,) if isinstance(declared, str) else tuple(declared)
    candidates = [
        name
        for name, child in module.named_children()
        if name in HEAD_ATTRIBUTES and next(child.parameters(), None) is not None
    ]
    if len(candidates) != 1:
        return ()
    (attribute,) = candidates
    layers = module.get_submodule(attribute).named_modules(prefix=attribute)
    scoring = [name for name, layer in layers if isinstance(layer, nn.Linear | nn.Conv2d)]
    return (scoring[-1] if scoring else attribute,)


def head_of(module: nn.Module, config: ModelConfig) -> nn.Module:
    """The head of a model that was built from `config`: the part that is new with pretrained weights, and that is
    trained while the backbone is frozen. See :func:`find_head_names`.

    Raises:
        InvalidModelError: when it is ambiguous.
    """
    names = find_head_names(module)
    if not names:
        raise InvalidModelError(
            f"model.name = {config.name!r}: can't tell which layer is the head; {type(module).__name__} needs "
            f"exactly one attribute with parameters among {', '.join(HEAD_ATTRIBUTES)} "
            f"(it has {', '.join(name for name, _ in module.named_children()) or 'no submodules'}). "
            "Rename it, or train everything from the start with trainer.freeze_backbone_epochs=0, and choose by "
            "patterns in optimizer.groups"
        )
    layers = [module.get_submodule(name) for name in names]
    return layers[0] if len(layers) == 1 else nn.ModuleList(layers)


def use_small_stem(module: nn.Module) -> None:
    """Replace the stem of a torchvision ResNet or DenseNet in place; it downsamples by 8 instead of 32 then.

    The new convolution is initialised like torchvision's, from torch's global generator. The max-pool becomes an
    identity, so that no state-dict key changes.
    """
    match module:
        case models.ResNet():
            module.conv1 = _small_convolution(module.conv1)
            nn.init.kaiming_normal_(module.conv1.weight, mode="fan_out", nonlinearity="relu")
            module.maxpool = nn.Identity()
        case models.DenseNet():
            convolution = _small_convolution(module.features.get_submodule("conv0"))
            nn.init.kaiming_normal_(convolution.weight)
            module.features.add_module("conv0", convolution)
            module.features.add_module("pool0", nn.Identity())
        case _:
            raise TypeError(f"a small stem is implemented for ResNet and DenseNet, not for {type(module).__name__}")


class BlurredConv2d(nn.Conv2d):
    """A convolution of its input after a blur by [1, 2, 1] ⊗ [1, 2, 1] / 16 (zero padding)."""

    blur: Tensor

    def __init__(self, convolution: nn.Conv2d) -> None:
        """Take over the weights of a convolution, under the same names."""
        super().__init__(
            convolution.in_channels,
            convolution.out_channels,
            convolution.kernel_size,  # type: ignore[arg-type]
            convolution.stride,  # type: ignore[arg-type]
            convolution.padding,  # type: ignore[arg-type]
            convolution.dilation,  # type: ignore[arg-type]
            convolution.groups,
            bias=convolution.bias is not None,
            device="meta",
        )
        self.weight, self.bias = convolution.weight, convolution.bias
        row = torch.tensor([1.0, 2.0, 1.0], device=self.weight.device) / 4
        self.register_buffer("blur", torch.outer(row, row).repeat(self.in_channels, 1, 1, 1), persistent=False)

    def forward(self, images: Tensor) -> Tensor:
        """(N, channels, height, width) → as :class:`torch.nn.Conv2d`."""
        blurred = functional.conv2d(images, self.blur.to(images.dtype), padding=1, groups=self.in_channels)
        return super().forward(blurred)


def blur_before_strides(resnet: nn.Module) -> None:
    """Blur the input of each convolution of stride 2 behind the stem, in place; no state-dict key changes."""
    for name, layer in list(resnet.named_modules()):
        if isinstance(layer, nn.Conv2d) and max(layer.stride) > 1 and name != "conv1":
            resnet.set_submodule(name, BlurredConv2d(layer))


def stem_name(config: ModelConfig) -> str | None:
    """The name of the convolution of a small stem; None with the architecture's own stem."""
    match config:
        case ResNetConfig(stem="small"):
            return "conv1"
        case DenseNetConfig(stem="small"):
            return "features.conv0"
        case _:
            return None


def _small_convolution(replaced: nn.Module) -> nn.Conv2d:
    assert isinstance(replaced, nn.Conv2d)
    channels = replaced.in_channels, replaced.out_channels
    return nn.Conv2d(*channels, kernel_size=3, stride=1, padding=1, bias=False)
