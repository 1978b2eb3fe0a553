from __future__ import annotations

import dataclasses
import importlib
import pickle
import sys
from pathlib import Path

import pytest
import timm
import torch
from safetensors.torch import save_file

from runner.base.errors import InvalidModelError, MissingPackageError
from runner.config.schema.model import TimmConfig
from runner.model import (
    WeightsPreprocessing,
    build_architecture,
    build_model,
    check_model,
    head_of,
    weights_preprocessing,
)
from runner.model.architectures import find_head_names
from runner.model.timm_models import check_timm_name


def config(name: str = "test_vit", **changes) -> TimmConfig:
    keys = ("weights", "drop_rate", "drop_path_rate", "global_pool", "img_size")
    values = {**dict.fromkeys(keys), "average_flips": False, "checkpoint_activations": False, **changes}
    return TimmConfig(family="timm", name=name, **values)


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The empty cache of the Hugging Face Hub; no network."""
    constants = importlib.import_module("huggingface_hub.constants")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    return tmp_path / "hub"


def put_into(hub: Path, repository: str, tensors: dict[str, torch.Tensor]) -> None:
    """As the Hub's library keeps a file that it has downloaded."""
    folder = hub / f"models--{repository.replace('/', '--')}"
    for name in ("refs", "blobs", "snapshots/abc"):
        (folder / name).mkdir(parents=True)
    (folder / "refs" / "main").write_text("abc")
    save_file(tensors, folder / "blobs" / "xyz")
    (folder / "snapshots" / "abc" / "model.safetensors").symlink_to("../../blobs/xyz")


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("tset_vit", "did you mean test_vit"),
        ("ResNet50", "did you mean resnet50"),
        ("hf-hub:timm/resnet50.a1_in1k", "timm has no such model"),
        ("hf_hub:timm/resnet50.a1_in1k", "timm has no such model"),
        ("local-dir:/tmp", "timm has no such model"),
        ("resnet50.no_such_tag", "no weights 'no_such_tag' of resnet50; it has a1_in1k"),
        ("../../etc/passwd", "timm has no such model"),
    ],
)
def test_a_name_that_timm_does_not_list_is_refused(name, hint):
    with pytest.raises(InvalidModelError, match=hint):
        check_timm_name(name)


def test_weights_follow_the_seed_as_timms_own():
    torch.manual_seed(7)
    ours = build_architecture(config(), 5)
    torch.manual_seed(7)
    theirs = timm.create_model("test_vit", num_classes=5)
    assert all(torch.equal(one, other) for one, other in zip(ours.parameters(), theirs.parameters(), strict=True))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"name": "test_resnet", "img_size": 64},
            r"model\.img_size = 64: test_resnet has no such setting; leave it null",
        ),
        ({"name": "vgg11", "drop_path_rate": 0.1}, r"model\.drop_path_rate = 0\.1: vgg11 has no such setting"),
        ({"global_pool": "no such"}, r"test_vit can't be built with model\.global_pool = 'no such'"),
    ],
)
def test_what_the_architecture_does_not_take_is_refused(changes, message):
    with pytest.raises(InvalidModelError, match=message):
        check_model(config(**changes), 5)


def test_an_image_size_that_does_not_fit_is_refused_with_both_ways_out():
    with pytest.raises(InvalidModelError, match=r"data\.image_size=224, or, if .* model\.img_size=64"):
        check_model(config("vit_tiny_patch16_224"), 5, image_size=64)
    check_model(config("vit_tiny_patch16_224", img_size=64), 5, image_size=64)


def test_a_model_that_calculates_while_it_is_built_is_checked_too():
    check_model(config("vitamin_small_224"), 5, image_size=224)


def test_the_head_is_what_timm_says_it_is():
    with torch.device("meta"):
        assert find_head_names(build_architecture(config("test_vit"), 5)) == ("head",)
        distilled = build_architecture(config("deit_tiny_distilled_patch16_224"), 5)
    assert find_head_names(distilled) == ("head", "head_dist")
    assert len(list(head_of(distilled, config()).parameters())) == 4


def test_pretrained_weights_come_from_the_cache_of_the_hub(hub):
    source = timm.create_model("test_vit")
    put_into(hub, "timm/test_vit.r160_in1k", source.state_dict())
    wanted = config(weights="pretrained", img_size=32)
    check_model(wanted, 5, image_size=32, has_to_be_here=True)
    built = build_model(wanted, 5, "local")
    assert torch.equal(built.module.blocks[0].attn.qkv.weight, source.blocks[0].attn.qkv.weight)
    assert built.module.pos_embed.shape == (1, 5, 64)  # resized from 160 px, as timm does
    assert built.module.head.weight.shape == (5, 64)
    assert built.preprocessing == WeightsPreprocessing(
        resize_size=168, crop_size=160, mean=(0.5,) * 3, std=(0.5,) * 3, interpolation="bicubic"
    )


@pytest.mark.parametrize(("crop_mode", "warns"), [("center", False), ("squash", True), ("border", True)])
def test_weights_that_timm_evaluates_with_whole_images_are_warned_of(hub, monkeypatch, caplog, crop_mode, warns):
    published = dataclasses.replace(timm.get_pretrained_cfg("test_vit"), crop_mode=crop_mode)
    monkeypatch.setattr(timm, "get_pretrained_cfg", lambda name: published)
    put_into(hub, "timm/test_vit.r160_in1k", timm.create_model("test_vit").state_dict())
    build_model(config(weights="pretrained"), 5, "local")
    assert (f"crop_mode={crop_mode}" in caplog.text) is warns


@pytest.mark.parametrize(
    ("weights", "message"), [("download", "type model.weights=FILE"), ("local", "downloads nothing")]
)
def test_weights_that_are_not_here_are_named_with_their_address(hub, weights, message):
    wanted = config(weights="pretrained")
    check_model(wanted, 5)  # nothing is asked of the network before training
    with pytest.raises(InvalidModelError, match=r"https://huggingface\.co/timm/test_vit\.r160_in1k") as caught:
        build_model(wanted, 5, weights)
    assert message in str(caught.value)


def test_a_model_without_published_weights_says_so():
    with pytest.raises(InvalidModelError, match="timm has no published weights of resnet50t"):
        weights_preprocessing(config("resnet50t", weights="pretrained"))


def test_a_file_of_another_run_is_taken_with_or_without_its_head(tmp_path):
    source = build_architecture(config("test_convnext"), 5)
    save_file(source.state_dict(), tmp_path / "own.safetensors")
    wanted = config("test_convnext", weights=str(tmp_path / "own.safetensors"))
    same, other = build_model(wanted, 5).module, build_model(wanted, 3).module
    assert torch.equal(same.head.fc.weight, source.head.fc.weight)
    assert other.head.fc.weight.shape[0] == 3
    assert torch.equal(other.stem[0].weight, source.stem[0].weight)


@pytest.mark.parametrize("kind", ["code", "truncated", "another model"])
def test_a_hostile_or_wrong_file_is_refused_by_name(tmp_path, kind):
    file = tmp_path / ("weights.pth" if kind == "code" else "weights.safetensors")
    match kind:
        case "code":
            file.write_bytes(pickle.dumps(exec, protocol=2))
            message = "code is never run"
        case "truncated":
            save_file(build_architecture(config(), 5).state_dict(), file)
            file.write_bytes(file.read_bytes()[:-100])
            message = "damaged or no weights file"
        case _:
            save_file(build_architecture(config("test_resnet"), 5).state_dict(), file)
            message = "does not fit test_vit"
    with pytest.raises(InvalidModelError, match=message):
        build_model(config(weights=str(file)), 5)


def test_without_timm_its_installation_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "timm", None)
    with pytest.raises(MissingPackageError, match='model=timm needs timm, which is not installed: pip install "timm>='):
        check_model(config(), 5)
