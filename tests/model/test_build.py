from __future__ import annotations

import pytest
import safetensors.torch
import torch
from torchvision import models

from runner.base.errors import InvalidModelError
from runner.model import WeightsPreprocessing, build_model, weights_preprocessing

IMAGENET = WeightsPreprocessing(
    resize_size=256, crop_size=224, mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225), interpolation="bilinear"
)


CODE = """
from torch import nn

def net(num_classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(3, num_classes))
"""


def test_from_scratch(resnet):
    built = build_model(resnet(), 3)
    assert built.preprocessing is None
    assert built.module.fc.out_features == 3


def test_named_weights_come_from_torch_hubs_cache(hub_cache, resnet):
    published = models.resnet18()
    torch.save(published.state_dict(), hub_cache / "resnet18-f37072fd.pth")
    built = build_model(resnet(weights="IMAGENET1K_V1"), 2)
    assert built.preprocessing == IMAGENET
    assert built.preprocessing == weights_preprocessing(resnet(weights="DEFAULT"))
    assert built.module.fc.out_features == 2
    assert built.module.training
    assert torch.equal(built.module.layer4[1].conv2.weight, published.layer4[1].conv2.weight)
    assert all(parameter.requires_grad for parameter in built.module.parameters())


def test_a_head_of_named_weights_is_replaced_even_for_as_many_classes(hub_cache, resnet):
    published = models.resnet18()
    torch.save(published.state_dict(), hub_cache / "resnet18-f37072fd.pth")
    built = build_model(resnet(weights="IMAGENET1K_V1"), 1000)
    assert not torch.equal(built.module.fc.weight, published.fc.weight)


def test_the_seed_decides_the_new_head(hub_cache, resnet, same_values):
    torch.save(models.resnet18().state_dict(), hub_cache / "resnet18-f37072fd.pth")
    torch.manual_seed(7)
    first = build_model(resnet(weights="IMAGENET1K_V1"), 2).module
    torch.manual_seed(7)
    assert same_values(first, build_model(resnet(weights="IMAGENET1K_V1"), 2).module)


def test_densenets_old_names_are_read_as_torchvision_reads_them(hub_cache, densenet):
    def old(name: str) -> str:
        if "denselayer" not in name:
            return name
        for layer in ("norm", "conv"):
            name = name.replace(f".{layer}1.", f".{layer}.1.").replace(f".{layer}2.", f".{layer}.2.")
        return name

    published = {
        old(name): value for name, value in models.densenet121().state_dict().items() if "num_batches" not in name
    }
    assert "features.denseblock1.denselayer1.norm.1.weight" in published
    file = hub_cache / "densenet121-a639ec97.pth"
    torch.save(published, file, _use_new_zipfile_serialization=False)  # as the real file of 2017
    built = build_model(densenet(weights="IMAGENET1K_V1"), 2).module
    plain = models.densenet121(weights="IMAGENET1K_V1")
    for name, value in plain.features.state_dict().items():
        assert torch.equal(built.features.state_dict()[name], value), name


def test_auxiliary_heads_of_published_weights_are_dropped(hub_cache, torchvision_model):
    published = models.googlenet(aux_logits=True, init_weights=False)
    torch.save(published.state_dict(), hub_cache / "googlenet-1378be20.pth")
    built = build_model(torchvision_model("googlenet", "IMAGENET1K_V1"), 2).module
    plain = models.googlenet(weights="IMAGENET1K_V1")
    built.fc = plain.fc
    images = torch.rand(1, 3, 64, 64)
    assert torch.equal(built.eval()(images), plain.eval()(images))


@pytest.mark.parametrize("name", ["w.safetensors", "w.pth"])
def test_weights_from_a_file(name, tmp_path, resnet, same_values):
    source = models.resnet18(num_classes=2)
    if name.endswith(".pth"):
        torch.save({"model": source.state_dict(), "epoch": 3}, tmp_path / name)
    else:
        safetensors.torch.save_file(source.state_dict(), tmp_path / name)
    built = build_model(resnet(weights=str(tmp_path / name)), 2)
    assert same_values(built.module, source)
    assert built.preprocessing is None
    (tmp_path / name).unlink()  # nothing of the model may depend on the file any more
    assert built.module(torch.rand(2, 3, 32, 32)).shape == (2, 2)


def test_a_damaged_file_in_the_cache_is_named(hub_cache, resnet):
    path = hub_cache / "resnet18-f37072fd.pth"
    path.write_bytes(b"<html>sign in</html>")
    with pytest.raises(InvalidModelError, match=r"resnet18-f37072fd\.pth' is a web page"):
        build_model(resnet(weights="IMAGENET1K_V1"), 2)


def test_a_custom_model_starts_from_a_file(tmp_path, custom, install_models):
    install_models(CODE, net="model_zoo_of_a_test:net")
    weights = {"1.weight": torch.rand(2, 3), "1.bias": torch.rand(2)}
    safetensors.torch.save_file(weights, tmp_path / "w.safetensors")
    built = build_model(custom("net", str(tmp_path / "w.safetensors")), 2)
    assert torch.equal(built.module[1].weight, weights["1.weight"])
    with pytest.raises(InvalidModelError, match=r"2 of other shape \(.*1\.weight: 2×3, must be 5×3"):
        build_model(custom("net", str(tmp_path / "w.safetensors")), 5)


def test_a_run_that_has_a_checkpoint_needs_no_weights(resnet, hub_cache):
    built = build_model(resnet(weights="IMAGENET1K_V1"), 2, "none")
    assert built.preprocessing is not None, "images are still prepared as for these weights"


def test_weights_that_only_a_saved_config_names_are_not_downloaded(resnet, hub_cache):
    with pytest.raises(InvalidModelError, match=r"a saved config downloads nothing; type model.weights=IMAGENET1K_V1"):
        build_model(resnet(weights="IMAGENET1K_V1"), 2, "local")
    assert list(hub_cache.iterdir()) == []
