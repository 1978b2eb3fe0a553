from __future__ import annotations

import copy
from typing import get_args

import pytest
import torch
from torch.nn import functional
from torchvision import models

from runner.base.errors import InvalidModelError
from runner.config.schema.model import DenseNetName, ResNetName
from runner.model import build_architecture
from runner.model.architectures import BlurredConv2d


@pytest.mark.parametrize("name", get_args(ResNetName))
def test_resnets_have_the_documented_number_of_parameters(name, resnet):
    with torch.device("meta"):
        module = build_architecture(resnet(name=name), 1000)
    documented = models.get_model_weights(name).DEFAULT.meta["num_params"]
    assert sum(parameter.numel() for parameter in module.parameters()) == documented


@pytest.mark.parametrize("name", get_args(DenseNetName))
def test_densenets_have_the_documented_number_of_parameters(name, densenet):
    with torch.device("meta"):
        module = build_architecture(densenet(name=name), 1000)
    documented = models.get_model_weights(name).DEFAULT.meta["num_params"]
    assert sum(parameter.numel() for parameter in module.parameters()) == documented


def test_plain_torchvision_loads_a_resnet_and_gives_the_same_logits(resnet):
    module = build_architecture(resnet(), 3).eval()
    plain = models.resnet18(num_classes=3).eval()
    plain.load_state_dict(module.state_dict())
    images = torch.rand(2, 3, 64, 64)
    assert torch.equal(module(images), plain(images))


def test_plain_torchvision_loads_a_densenet_and_gives_the_same_logits(densenet):
    module = build_architecture(densenet(), 3).eval()
    plain = models.densenet121(num_classes=3).eval()
    plain.load_state_dict(module.state_dict())
    images = torch.rand(1, 3, 64, 64)
    assert torch.equal(module(images), plain(images))


def test_the_seed_decides_every_bit_and_is_torchvisions(resnet, same_values):
    torch.manual_seed(7)
    first = build_architecture(resnet(), 3)
    torch.manual_seed(7)
    plain = models.resnet18(num_classes=3)
    torch.manual_seed(8)
    other = build_architecture(resnet(), 3)
    assert same_values(first, plain)
    assert not same_values(first, other)


def test_models_are_fp32_on_the_cpu_in_training_mode(resnet):
    module = build_architecture(resnet(), 3)
    assert module.training
    assert {(value.device.type, value.dtype) for value in module.parameters()} == {("cpu", torch.float32)}


def test_zero_init_residual_zeroes_the_last_norm_of_each_block(resnet):
    zeroed = build_architecture(resnet(zero_init_residual=True), 3)
    usual = build_architecture(resnet(), 3)
    assert zeroed.layer1[0].bn2.weight.abs().max() == 0
    assert usual.layer1[0].bn2.weight.min() == 1


def test_memory_efficient_densenet_is_the_same_function(densenet, same_values):
    torch.manual_seed(7)
    efficient = build_architecture(densenet(memory_efficient=True), 3)
    torch.manual_seed(7)
    plain = build_architecture(densenet(), 3)
    assert efficient.features.denseblock1.denselayer1.memory_efficient
    assert not plain.features.denseblock1.denselayer1.memory_efficient
    assert same_values(efficient, plain)
    images = torch.rand(2, 3, 32, 32)
    gradients = []
    for module in (efficient, plain):
        module(images).sum().backward()
        gradients.append(module.features.conv0.weight.grad)
    torch.testing.assert_close(*gradients)


@pytest.mark.parametrize(("name", "size"), [("googlenet", 64), ("inception_v3", 75)])
def test_models_with_auxiliary_heads_return_one_tensor_in_training(name, size, torchvision_model):
    module = build_architecture(torchvision_model(name), 3)
    assert module.training
    assert module(torch.rand(2, 3, size, size)).shape == (2, 3)
    assert not [key for key in module.state_dict() if key.lower().startswith("aux")]


def test_googlenet_converts_its_input_only_for_the_weights_that_need_it(torchvision_model):
    with torch.device("meta"):
        assert build_architecture(torchvision_model("googlenet", "IMAGENET1K_V1"), 3).transform_input
        assert not build_architecture(torchvision_model("googlenet"), 3).transform_input


@pytest.mark.parametrize(
    ("weights", "image_size"), [(None, 224), ("IMAGENET1K_V1", 224), ("ViT_B_16_Weights.IMAGENET1K_SWAG_E2E_V1", 384)]
)
def test_vision_transformers_take_the_size_of_their_weights(weights, image_size, torchvision_model):
    with torch.device("meta"):
        module = build_architecture(torchvision_model("vit_b_16", weights), 3)
    assert module.image_size == image_size
    assert module.encoder.pos_embedding.shape == (1, (image_size // 16) ** 2 + 1, 768)


def test_any_classifier_of_torchvision_by_name(torchvision_model):
    module = build_architecture(torchvision_model("squeezenet1_1"), 3)
    assert isinstance(module, models.SqueezeNet)
    assert module(torch.rand(2, 3, 32, 32)).shape == (2, 3)


def test_unknown_names_are_refused(torchvision_model):
    with pytest.raises(InvalidModelError, match=r"did you mean mobilenet_v3_small,"):
        build_architecture(torchvision_model("mobilnet_v3_smal"), 3)


def test_scores_of_mirror_images_are_averaged_at_evaluation_only(resnet):
    module = build_architecture(resnet(average_flips=True), 3)
    plain = build_architecture(resnet(), 3)
    plain.load_state_dict(module.state_dict())
    images = torch.rand(2, 3, 64, 64)
    assert torch.equal(module(images), plain(images))
    module.eval(), plain.eval()
    expected = (plain(images) + plain(images.flip(3))) / 2
    assert torch.equal(module(images), expected)
    torch.testing.assert_close(module(images.flip(3)), expected)
    assert torch.equal(copy.deepcopy(module)(images), expected)
    module.fc.train()  # with a frozen backbone
    assert torch.equal(module(images), plain(images))


def test_blurred_convolutions_keep_torchvisions_weights(resnet):
    plain = build_architecture(resnet(name="resnet50"), 3).eval()
    blurred = build_architecture(resnet(name="resnet50", blur_pool=True), 3).eval()
    blurred.load_state_dict(plain.state_dict())
    assert sum(isinstance(layer, BlurredConv2d) for layer in blurred.modules()) == 6, "3 stages, branch and shortcut"
    images = torch.rand(2, 128, 8, 8)
    row = torch.tensor([1.0, 2.0, 1.0])
    kernel = (row[:, None] * row / 16).expand(128, 1, 3, 3)
    smooth = functional.conv2d(images, kernel, padding=1, groups=128)
    strided = plain.layer2[0].conv2
    torch.testing.assert_close(blurred.layer2[0].conv2(images), strided(smooth))
    assert blurred.layer2[0].conv2.weight.requires_grad
    assert blurred.bfloat16().layer2[0].conv2(images.bfloat16()).dtype == torch.bfloat16
