from __future__ import annotations

import sys

import pytest
from torch import nn

from runner.base.errors import InvalidModelError, MissingPackageError
from runner.model import order_layers
from runner.model.check import without_values


def test_a_resnet_has_a_stem_four_stages_and_a_head(resnet):
    found = order_layers(without_values(resnet(), 3), resnet())
    expected = {"conv1": 0, "bn1": 0, "layer1": 1, "layer2": 2, "layer3": 3, "layer4": 4, "fc": 5}
    assert {name.partition(".")[0]: layer for name, layer in found.items()} == expected
    assert all(layer == expected[name.partition(".")[0]] for name, layer in found.items())


def test_a_transition_of_a_densenet_belongs_to_the_block_before_it(densenet):
    found = order_layers(without_values(densenet(), 3), densenet())
    parts = {
        ".".join(name.split(".")[: 2 if name.startswith("features") else 1]): layer for name, layer in found.items()
    }
    assert parts == {
        "features.conv0": 0,
        "features.norm0": 0,
        **{f"features.denseblock{number}": number for number in (1, 2, 3, 4)},
        **{f"features.transition{number}": number for number in (1, 2, 3)},
        "features.norm5": 4,
        "classifier": 5,
    }


def test_a_model_without_an_order_is_refused(torchvision_model):
    config = torchvision_model("mobilenet_v3_small")
    with pytest.raises(InvalidModelError, match=r"'mobilenet_v3_small': optimizer.layer_decay needs the order"):
        order_layers(without_values(config, 3), config)


def test_without_timm_a_model_that_needs_it_is_refused_by_name(torchvision_model, monkeypatch):
    module = nn.Linear(2, 2)
    module.group_matcher = lambda coarse=False: {"stem": "^"}
    monkeypatch.setitem(sys.modules, "timm.models", None)
    with pytest.raises(MissingPackageError, match="pip install timm"):
        order_layers(module, torchvision_model("vgg11"))
