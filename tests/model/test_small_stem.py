from __future__ import annotations

import pytest
import torch
from torch import nn
from torchvision import models

from runner.model import build_architecture
from runner.model.architectures import stem_name, use_small_stem


def test_a_small_resnet_differs_in_the_stem_only(resnet):
    small = build_architecture(resnet(stem="small"), 10)
    plain = models.resnet18(num_classes=10)
    assert small.conv1.weight.shape == (64, 3, 3, 3)
    assert (small.conv1.stride, small.conv1.padding, small.conv1.bias) == ((1, 1), (1, 1), None)
    assert isinstance(small.maxpool, nn.Identity)
    assert list(small.state_dict()) == list(plain.state_dict())
    shapes = [{name: value.shape for name, value in module.state_dict().items()} for module in (small, plain)]
    assert {name for name in shapes[0] if shapes[0][name] != shapes[1][name]} == {"conv1.weight"}


def test_a_small_densenet_differs_in_the_stem_only(densenet):
    small = build_architecture(densenet(stem="small"), 10)
    plain = models.densenet121(num_classes=10)
    assert small.features.conv0.weight.shape == (64, 3, 3, 3)
    assert (small.features.conv0.stride, small.features.conv0.padding) == ((1, 1), (1, 1))
    assert isinstance(small.features.pool0, nn.Identity)
    assert list(dict(small.named_modules())) == list(dict(plain.named_modules()))
    shapes = [{name: value.shape for name, value in module.state_dict().items()} for module in (small, plain)]
    assert {name for name in shapes[0] if shapes[0][name] != shapes[1][name]} == {"features.conv0.weight"}


def test_feature_maps_stay_four_times_larger(resnet):
    small = build_architecture(resnet(stem="small"), 10)
    sizes = []
    small.layer4.register_forward_hook(lambda module, inputs, output: sizes.append(output.shape[-2:]))
    assert small(torch.rand(2, 3, 32, 32)).shape == (2, 10)
    assert sizes == [(4, 4)]


def test_a_small_densenet_runs(densenet):
    assert build_architecture(densenet(stem="small"), 10)(torch.rand(2, 3, 16, 16)).shape == (2, 10)


def test_the_stem_is_drawn_as_torchvision_draws_its_own(resnet, densenet):
    # Kaiming normal: std = gain / sqrt(fan), gain sqrt(2); ResNets take fan out, 64·3·3, DenseNets fan in, 3·3·3.
    resnet_std = build_architecture(resnet(stem="small"), 10).conv1.weight.std().item()
    densenet_std = build_architecture(densenet(stem="small"), 10).features.conv0.weight.std().item()
    assert resnet_std == pytest.approx((2 / (64 * 9)) ** 0.5, rel=0.1)
    assert densenet_std == pytest.approx((2 / 27) ** 0.5, rel=0.1)


def test_the_seed_decides_the_stem(resnet, same_values):
    torch.manual_seed(7)
    first = build_architecture(resnet(stem="small"), 10)
    torch.manual_seed(7)
    assert same_values(first, build_architecture(resnet(stem="small"), 10))


def test_stem_name(resnet, densenet, torchvision_model):
    assert stem_name(resnet(stem="small")) == "conv1"
    assert stem_name(densenet(stem="small")) == "features.conv0"
    assert stem_name(resnet()) is None
    assert stem_name(torchvision_model("resnet18")) is None


def test_other_architectures_have_no_such_stem():
    with pytest.raises(TypeError, match="SqueezeNet"):
        use_small_stem(models.squeezenet1_1())
