"""The first layer for other channels than RGB, of random and of pretrained weights."""

from __future__ import annotations

import pytest
import torch
from safetensors.torch import save_file
from torch import nn
from torchvision import models

from runner.base.errors import InvalidModelError
from runner.model import build_architecture, build_model, check_model
from runner.model.input_channels import adapt_first_layer, adapt_input_conv, first_convolutions

timm = pytest.importorskip("timm")
CHANNELS = [1, 3, 4]


@pytest.mark.parametrize("num_channels", [*CHANNELS, 7])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_the_rule_is_that_of_timm(num_channels: int, dtype: torch.dtype) -> None:
    weight = torch.randn(5, 3, 7, 7).to(dtype)
    theirs = timm.models.adapt_input_conv(num_channels, weight)
    ours = adapt_input_conv(num_channels, weight)
    assert ours.dtype == theirs.dtype
    assert torch.equal(ours, theirs)


@pytest.mark.parametrize("num_channels", CHANNELS)
@pytest.mark.parametrize(
    ("family", "values", "side"),
    [
        ("resnet", {}, 32),
        ("resnet", {"stem": "small"}, 32),
        ("densenet", {}, 32),
        ("densenet", {"stem": "small"}, 32),
        ("torchvision_model", {"name": "mobilenet_v3_small"}, 32),
        ("torchvision_model", {"name": "vit_b_16"}, 224),
    ],
)
def test_models_take_the_channels(request, family: str, values: dict, side: int, num_channels: int) -> None:
    config = request.getfixturevalue(family)(**values)
    check_model(config, 3, num_channels=num_channels, image_size=side)
    with torch.device("meta"):
        image = torch.rand(2, num_channels, side, side)
    assert build_architecture(config, 3, num_channels).to("meta")(image).shape == (2, 3)


def test_all_other_layers_start_from_the_same_values(resnet) -> None:
    built = {}
    for number in CHANNELS:
        torch.manual_seed(5)
        built[number] = build_architecture(resnet(), 3, number).state_dict()
    first = built[3].pop("conv1.weight")
    assert torch.equal(built[1].pop("conv1.weight"), first.sum(dim=1, keepdim=True))
    assert built[4].pop("conv1.weight").shape == (64, 4, 7, 7)
    assert all(torch.equal(value, built[number][name]) for number in (1, 4) for name, value in built[3].items())


@pytest.mark.parametrize("family", ["resnet", "densenet"])
def test_grey_images_score_with_summed_weights_as_three_equal_channels(request, family: str, tmp_path) -> None:
    config = request.getfixturevalue(family)()
    torch.manual_seed(2)
    of_rgb = build_architecture(config, 3).eval()
    save_file(dict(of_rgb.state_dict()), tmp_path / "rgb.safetensors")
    given = config.model_copy(update={"weights": str(tmp_path / "rgb.safetensors")})
    of_grey = build_model(given, 3, num_channels=1).module.eval()
    check_model(given, 3, num_channels=1, image_size=32)
    image = torch.rand(2, 1, 32, 32)
    with torch.inference_mode():
        torch.testing.assert_close(of_grey(image), of_rgb(image.expand(-1, 3, -1, -1)))


def test_weights_for_as_many_channels_are_loaded_as_they_are(resnet, tmp_path) -> None:
    torch.manual_seed(3)
    source = build_architecture(resnet(), 3, 4)
    save_file(dict(source.state_dict()), tmp_path / "four.safetensors")
    given = resnet(weights=str(tmp_path / "four.safetensors"))
    assert torch.equal(build_model(given, 3, num_channels=4).module.conv1.weight, source.conv1.weight)
    with pytest.raises(InvalidModelError, match=r"conv1.weight: 64×4×7×7, must be 64×1×7×7"):
        build_model(given, 3, num_channels=1)


def test_a_small_stem_stays_new_with_weights_of_another(resnet, tmp_path) -> None:
    save_file(dict(build_architecture(resnet(), 3).state_dict()), tmp_path / "rgb.safetensors")
    given = resnet(stem="small", weights=str(tmp_path / "rgb.safetensors"))
    assert build_model(given, 3, num_channels=1).module.conv1.weight.shape == (64, 1, 3, 3)


def test_a_model_that_converts_colours_is_refused() -> None:
    inception = models.googlenet(weights=None, aux_logits=False, init_weights=False, transform_input=True)
    with pytest.raises(InvalidModelError, match=r"red, green and blue itself, .*: it takes data.channels=3 only"):
        adapt_first_layer(inception, 1, "model.name = 'googlenet'")
    with pytest.raises(InvalidModelError, match="no convolution over RGB"):
        adapt_first_layer(nn.Sequential(nn.Conv2d(5, 2, 1)), 1, "model.name = 'x'")
    assert first_convolutions(nn.Linear(3, 2)) == []


def test_a_model_of_timm_names_its_first_layer() -> None:
    module = timm.create_model("resnet10t.c3_in1k", pretrained=False, in_chans=4, num_classes=2)
    ((name, layer),) = first_convolutions(module)
    assert (name, layer.in_channels) == ("conv1.0", 4)
    module.pretrained_cfg["first_conv"] = ("conv1.0", "conv1.3", "gone")
    assert [name for name, _ in first_convolutions(module)] == ["conv1.0", "conv1.3"]


@pytest.mark.parametrize("name", ["test_vit", "test_resnet", "crossvit_tiny_240"])
def test_files_of_timm_for_rgb_score_grey_images_as_three_equal_channels(name: str, timm_model, tmp_path) -> None:
    config = timm_model(name=name)
    torch.manual_seed(2)
    of_rgb = build_architecture(config, 3).eval()
    save_file(dict(of_rgb.state_dict()), tmp_path / "rgb.safetensors")
    given = config.model_copy(update={"weights": str(tmp_path / "rgb.safetensors")})
    of_grey = build_model(given, 3, num_channels=1).module.eval()
    image = torch.rand(2, 1, *of_rgb.pretrained_cfg["input_size"][1:])
    with torch.inference_mode():
        torch.testing.assert_close(of_grey(image), of_rgb(image.expand(-1, 3, -1, -1)), rtol=1e-4, atol=1e-5)


MODULE = "model_zoo_of_a_test"
CODE = """
from torch import nn

def net(num_classes, num_channels):
    first = nn.Conv2d(num_channels, 4, 3)
    return nn.Sequential(first, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, num_classes))

def declares(num_classes, num_channels=3):
    return net(num_classes, num_channels)

def by_arguments(num_classes, **arguments):
    return net(num_classes, arguments["num_channels"])

def of_colours(num_classes):
    return net(num_classes, 3)
"""


def test_a_custom_model_declares_its_channels_or_is_refused(custom, install_models) -> None:
    names = ("declares", "of_colours", "by_arguments")
    install_models(CODE, **{name: f"{MODULE}:{name}" for name in names})
    for number in CHANNELS:
        module = build_architecture(custom("declares"), 2, number)
        assert module(torch.rand(1, number, 8, 8)).shape == (1, 2)
    with pytest.raises(InvalidModelError, match=r"3 channels, not data.channels = 1: .*a parameter num_channels"):
        build_architecture(custom("of_colours"), 2, 1)
    check_model(custom("of_colours"), 2, image_size=8)
    check_model(custom("by_arguments", num_channels=4), 2, num_channels=4, image_size=8)
    # What is written in model.arguments wins, and is tried with images.
    with pytest.raises(InvalidModelError, match=r"can't take images of 8×8 px \(data.image_size\) with 1 channel"):
        check_model(custom("declares", num_channels=3), 2, num_channels=1, image_size=8)
