from __future__ import annotations

import pytest
import safetensors.torch
import torch
from safetensors.torch import save_file
from torchvision import models

from runner.base.errors import CheckpointError, InvalidModelError
from runner.model import build_architecture, build_model, check_model, check_trained

CODE = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self, outputs, answer):
        super().__init__()
        self.head = nn.Linear(3, outputs)
        self.answer = answer

    def forward(self, images):
        scores = self.head(images.mean((2, 3)))
        return (scores, scores) if self.answer == "pair" else scores

def net(num_classes, outputs=None, answer="scores"):
    torch.rand(3)
    return Net(outputs or num_classes, answer)
"""


@pytest.fixture(autouse=True)
def installed(install_models):
    install_models(CODE, net="model_zoo_of_a_test:net")


def test_good_models_pass_and_leave_the_seed_alone(resnet, densenet, torchvision_model, custom, hub_cache):
    before = torch.get_rng_state()
    for config in (
        resnet(),
        resnet(stem="small", zero_init_residual=True),
        resnet(weights="IMAGENET1K_V1"),  # not downloaded, so not looked at
        densenet(stem="small", memory_efficient=True),
        torchvision_model("mobilenet_v3_small"),
        custom("net"),
    ):
        check_model(config, 3, image_size=64, needs_head=True)
    assert torch.equal(torch.get_rng_state(), before)
    assert list(hub_cache.iterdir()) == []


def test_the_check_allocates_no_weights(torchvision_model, monkeypatch):
    devices = set()
    get_model = models.get_model

    def watched(*args, **named):
        module = get_model(*args, **named)
        devices.update(parameter.device.type for parameter in module.parameters())
        return module

    monkeypatch.setattr(models, "get_model", watched)
    check_model(torchvision_model("regnet_y_128gf"), 3)  # 2.5 GB of weights
    assert devices == {"meta"}


@pytest.mark.parametrize(
    ("name", "size"),
    [
        ("alexnet", 63),
        ("convnext_tiny", 32),
        ("efficientnet_b0", 32),
        ("googlenet", 32),
        ("inception_v3", 75),
        ("maxvit_t", 224),
        ("mnasnet0_5", 32),
        ("regnet_y_400mf", 32),
        ("shufflenet_v2_x0_5", 32),
        ("squeezenet1_1", 32),
        ("swin_t", 32),
        ("swin_v2_t", 64),
        ("vgg11_bn", 32),
        ("vit_b_32", 224),
    ],
)
def test_every_family_of_torchvision_answers_on_meta(name, size, torchvision_model):
    check_model(torchvision_model(name), 7, image_size=size, needs_head=True)


@pytest.mark.parametrize(
    ("name", "weights", "size", "reason"),
    [
        ("vit_b_16", None, 32, "Expected 224 but got 32"),
        ("vit_b_16", "IMAGENET1K_SWAG_E2E_V1", 224, "Expected 384 but got 224"),
        ("inception_v3", None, 32, "it takes images of 96×96 px: data.image_size=96"),
        ("vgg11", None, 16, "data.image_size=32"),
    ],
)
def test_images_that_a_model_cannot_take(name, weights, size, reason, torchvision_model, hub_cache):
    with pytest.raises(
        InvalidModelError, match=rf"'{name}' can't take images of {size}×{size} px .*{reason}"
    ) as caught:
        check_model(torchvision_model(name, weights), 3, image_size=size)
    assert caught.value.__cause__ is not None


@pytest.mark.parametrize(("arguments", "received"), [({"outputs": 5}, r"\(2, 5\)"), ({"answer": "pair"}, "a tuple")])
def test_custom_models_with_other_outputs(arguments, received, custom):
    with pytest.raises(InvalidModelError, match=rf"returns {received} for two images; it must be .* shape \(2, 3\)"):
        check_model(custom("net", **arguments), 3, image_size=8)


@pytest.mark.parametrize("file", ["w.safetensors", "w.pth"])
def test_the_check_and_the_build_agree_about_files(file, tmp_path, resnet, densenet, caplog):
    path = tmp_path / file
    state = models.resnet18(num_classes=5).state_dict()
    if file.endswith(".pth"):
        torch.save(state, path)
    else:
        safetensors.torch.save_file(state, path)
    check_model(resnet(weights=str(path)), 3)
    check_model(resnet(weights=str(path), stem="small"), 5)
    refused = (densenet(weights=str(path)), resnet(name="resnet34", weights=str(path)))
    for config in refused:
        with pytest.raises(InvalidModelError) as from_check:
            check_model(config, 3)
        with pytest.raises(InvalidModelError) as from_build:
            build_model(config, 3)
        assert str(from_check.value) == str(from_build.value)


def test_weights_in_the_cache_are_checked(hub_cache, resnet):
    config = resnet(weights="IMAGENET1K_V1")
    path = hub_cache / "resnet18-f37072fd.pth"
    torch.save(models.resnet18().state_dict(), path)
    check_model(config, 3)
    path.write_bytes(path.read_bytes()[:100_000])
    with pytest.raises(InvalidModelError, match="can't be read: it is damaged"):
        check_model(config, 3)


def test_a_missing_file(tmp_path, resnet):
    with pytest.raises(InvalidModelError, match="there is no such file"):
        check_model(resnet(weights=str(tmp_path / "gone.pth")), 3)


def test_unknown_models_and_weights(torchvision_model, custom):
    with pytest.raises(InvalidModelError, match="no such image classifier"):
        check_model(torchvision_model("resnet5000"), 3)
    with pytest.raises(InvalidModelError, match="no such classifier weights"):
        check_model(torchvision_model("alexnet", "IMAGENET21K"), 3)
    with pytest.raises(InvalidModelError, match="did you mean net"):
        check_model(custom("nets"), 3)


def test_a_custom_model_and_its_file(tmp_path, custom):
    path = tmp_path / "w.safetensors"
    safetensors.torch.save_file({"head.weight": torch.rand(9, 3), "head.bias": torch.rand(9)}, path)
    check_model(custom("net", str(path)), 3, image_size=8)
    safetensors.torch.save_file({"trunk.weight": torch.rand(9, 3)}, path)
    with pytest.raises(InvalidModelError, match=r"1 unexpected \(trunk\.weight\)"):
        check_model(custom("net", str(path)), 3, image_size=8)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"fc.bias": None}, "does not fit the architecture: fc.bias is missing"),
        ({"extra": torch.zeros(1)}, "'extra' is none of its tensors"),
        ({"fc.weight": torch.zeros(4, 512)}, "fc.weight is 4×512 of float32, must be 3×512 of float32"),
        ({"fc.bias": torch.zeros(3, dtype=torch.float16)}, "fc.bias is 3 of float16, must be 3 of float32"),
        ({"fc.bias": torch.tensor([0, float("nan"), 0])}, "fc.bias holds values that are infinite or not a number"),
    ],
)
def test_trained_weights_that_do_not_fit_or_are_not_finite_are_refused(tmp_path, resnet, change, message):
    config = resnet()
    state = build_architecture(config, 3).state_dict()
    file = tmp_path / "model.safetensors"
    save_file(state, file)
    check_trained(file, config, 3)
    save_file({name: value for name, value in (state | change).items() if value is not None}, file)
    with pytest.raises(CheckpointError, match=message):
        check_trained(file, config, 3)
