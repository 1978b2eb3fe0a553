from __future__ import annotations

import logging

import pytest
import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel
from torchvision import models

from runner.base.errors import InvalidModelError
from runner.model.fit import load_into
from runner.model.state_dict import StateDict


def state_of(module: nn.Module) -> StateDict:
    state = module.state_dict()
    return StateDict(tensors=dict(state), versions=dict(state._metadata))


@pytest.fixture
def source() -> nn.Module:
    return models.resnet18(num_classes=3)


@pytest.fixture
def target() -> nn.Module:
    torch.manual_seed(2)
    return models.resnet18(num_classes=3)


def test_a_fitting_head_is_kept(source, target, resnet, same_values, caplog):
    with caplog.at_level("INFO", logger="runner"):
        load_into(target, state_of(source), resnet(weights="w.pth"), fresh_head=False)
    assert same_values(source, target)
    assert "model.weights = 'w.pth': the head (fc) fits and is kept" in caplog.text


@pytest.mark.parametrize(("num_classes", "fresh_head"), [(3, True), (1000, False), (1000, True)])
def test_other_heads_are_replaced(num_classes, fresh_head, target, resnet, caplog):
    before = {name: value.clone() for name, value in target.state_dict().items()}
    source = models.resnet18(num_classes=num_classes)
    with caplog.at_level("INFO", logger="runner"):
        load_into(target, state_of(source), resnet(weights="w.pth"), fresh_head=fresh_head)
    for name, value in target.state_dict().items():
        assert torch.equal(value, before[name] if name.startswith("fc.") else source.state_dict()[name]), name
    assert "the head (fc) is new" in caplog.text


def test_a_head_is_never_loaded_in_part(source, target, resnet):
    state = state_of(source)
    state.tensors["fc.weight"] = torch.rand(5, 512)  # while fc.bias still fits
    before = target.fc.bias.clone()
    load_into(target, state, resnet(weights="w.pth"), fresh_head=False)
    assert torch.equal(target.fc.bias, before)


def test_a_head_of_another_form_or_none_at_all_is_replaced(source, target, resnet):
    source.fc = nn.Sequential(nn.Dropout(), nn.Linear(512, 3))
    load_into(target, state_of(source), resnet(weights="w.pth"), fresh_head=False)
    assert torch.equal(target.conv1.weight, source.conv1.weight)
    source.fc = nn.Identity()
    load_into(target, state_of(source), resnet(weights="w.pth"), fresh_head=False)


@pytest.mark.parametrize("prefix", ["module.", "_orig_mod.", "model.", "module._orig_mod.", "_orig_mod.module."])
@pytest.mark.parametrize("with_versions", [True, False])
def test_names_as_wrappers_write_them(prefix, with_versions, source, target, resnet, same_values):
    state = state_of(source)
    versions = {f"{prefix}{name}".removesuffix("."): value for name, value in state.versions.items()}
    wrapped = StateDict(
        tensors={prefix + name: value for name, value in state.tensors.items()},
        versions={"": {"version": 1}, **versions} if with_versions else {},
    )
    load_into(target, wrapped, resnet(weights="w.pth"), fresh_head=False)
    assert same_values(source, target)


def test_weights_of_an_averaged_model(source, target, resnet, same_values):
    load_into(target, state_of(AveragedModel(source)), resnet(weights="w.pth"), fresh_head=False)
    assert same_values(source, target)


def test_a_wrapper_prefix_that_is_the_models_own_name_stays(custom):
    class Wrapped(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = nn.Linear(2, 2)

    source, target = Wrapped(), Wrapped()
    load_into(target, state_of(source), custom("mine", "w.pth"), fresh_head=False)
    assert torch.equal(target.model.weight, source.model.weight)


def test_batch_counters_may_be_missing_as_in_old_files(source, target, resnet):
    source.bn1.num_batches_tracked += 5
    state = state_of(source)
    tensors = {name: value for name, value in state.tensors.items() if "num_batches" not in name}
    load_into(target, StateDict(tensors=tensors, versions={}), resnet(weights="w.pth"), fresh_head=False)
    assert torch.equal(target.bn1.weight, source.bn1.weight)
    assert target.bn1.num_batches_tracked == 0


def test_half_precision_files_become_fp32(source, target, resnet):
    load_into(target, state_of(source.bfloat16()), resnet(weights="w.pth"), fresh_head=False)
    assert target.conv1.weight.dtype == torch.float32
    assert torch.equal(target.conv1.weight, source.conv1.weight.float())


def test_tensors_that_do_not_fit_are_listed(source, target, resnet):
    state = state_of(source)
    for name in [name for name in state.tensors if name.startswith("layer1.")]:
        state.tensors["stage1" + name.removeprefix("layer1")] = state.tensors.pop(name)
    state.tensors["layer2.0.conv1.weight"] = torch.rand(128, 64, 5, 5)
    state.tensors["bn1.bias"] = torch.tensor(1.0)
    with pytest.raises(InvalidModelError) as caught:
        load_into(target, state, resnet(weights="w.pth"), fresh_head=False)
    message = str(caught.value)
    # Four convolutions, and four norms with weight, bias, mean and variance; the counters may be missing.
    assert message.startswith(
        "model.weights = 'w.pth' does not fit resnet18: 20 missing (layer1.0.conv1.weight, layer1.0.bn1.weight, "
        "layer1.0.bn1.bias, layer1.0.bn1.running_mean, layer1.0.bn1.running_var, and 15 more); "
        "24 unexpected (stage1.0.conv1.weight, "
    )
    assert "2 of other shape (" in message
    assert "layer2.0.conv1.weight: 128×64×5×5, must be 128×64×3×3" in message
    assert "bn1.bias: a scalar, must be 64" in message


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_weights_of_another_architecture(device, target, resnet):
    other = models.squeezenet1_1()
    with pytest.raises(InvalidModelError, match=r"does not fit resnet18: .*missing .*unexpected .*and \d+ more"):
        load_into(target.to(device), state_of(other.to(device)), resnet(weights="w.pth"), fresh_head=True)


def test_a_small_stem_starts_from_scratch_under_weights_of_the_usual_one(source, resnet, caplog):
    config = resnet(weights="w.pth", stem="small")
    from runner.model import build_architecture

    target = build_architecture(config, 3)
    before = target.conv1.weight.clone()
    with caplog.at_level(logging.WARNING, logger="runner"):
        load_into(target, state_of(source), config, fresh_head=False)
    assert torch.equal(target.conv1.weight, before)
    assert torch.equal(target.layer1[0].conv1.weight, source.layer1[0].conv1.weight)
    assert "the small one (conv1) starts from random values" in caplog.text


def test_a_small_stem_is_loaded_where_it_fits(resnet, same_values, caplog):
    from runner.model import build_architecture

    config = resnet(weights="w.pth", stem="small")
    source, target = build_architecture(config, 3), build_architecture(config, 3)
    with caplog.at_level(logging.WARNING, logger="runner"):
        load_into(target, state_of(source), config, fresh_head=False)
    assert same_values(source, target)
    assert caplog.text == ""


def test_a_small_stem_does_not_fit_the_usual_one(target, resnet):
    from runner.model import build_architecture

    source = build_architecture(resnet(stem="small"), 3)
    with pytest.raises(InvalidModelError, match=r"1 of other shape \(conv1\.weight: 64×3×3×3, must be 64×3×7×7"):
        load_into(target, state_of(source), resnet(weights="w.pth"), fresh_head=False)


def test_old_names_of_vision_transformers(torchvision_model):
    with torch.device("meta"):
        source, target = models.vit_b_32(num_classes=3), models.vit_b_32(num_classes=3)
    spelling = {".mlp.0.": ".mlp.linear_1.", ".mlp.3.": ".mlp.linear_2."}
    tensors = {}
    for name, value in source.state_dict().items():
        for new, old in spelling.items():
            name = name.replace(new, old)  # noqa: PLW2901
        tensors[name] = value
    assert any("linear_1" in name for name in tensors)
    load_into(target, StateDict(tensors=tensors, versions={}), torchvision_model("vit_b_32", "w.pth"), fresh_head=False)


def test_a_model_that_insists_on_versions_loads_a_file_without(torchvision_model, same_values):
    source, target = models.mnasnet0_5(num_classes=3), models.mnasnet0_5(num_classes=3)
    state = StateDict(tensors=dict(source.state_dict()), versions={})
    load_into(target, state, torchvision_model("mnasnet0_5", "w.safetensors"), fresh_head=False)
    assert same_values(source, target)


def test_a_module_that_fails_in_its_own_way_of_loading(custom):
    class Stubborn(nn.Linear):
        def _load_from_state_dict(self, *args: object) -> None:
            raise KeyError("secret")

    with pytest.raises(InvalidModelError, match=r"'w\.pth' does not fit mine: 'secret'"):
        load_into(Stubborn(2, 2), state_of(nn.Linear(2, 2)), custom("mine", "w.pth"), fresh_head=False)
