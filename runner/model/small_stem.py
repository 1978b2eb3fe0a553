"""The stem for small images (≤ 64 px): a 3×3 convolution with stride 1 and no max-pool.

As He et al. 2015 (https://arxiv.org/abs/1512.03385, section 4.2) and Huang et al. 2017 use it on CIFAR.
"""

from __future__ import annotations

from torch import nn
from torchvision import models

from runner.config.schema.model import DenseNetConfig, ModelConfig, ResNetConfig


def use_small_stem(module: nn.Module) -> None:
    """Replace the stem of a torchvision ResNet or DenseNet in place; images are 8 times instead of 32 times reduced.

    The new convolution is drawn from torch's global generator, as torchvision draws the one that it replaces. The
    max-pool becomes an identity, so that no state-dict key changes.
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
            raise TypeError(f"a {type(module).__name__} has no stem that could be replaced")


def stem_name(config: ModelConfig) -> str | None:
    """The name of the convolution that a small stem replaced; None where the stem is the architecture's own."""
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
