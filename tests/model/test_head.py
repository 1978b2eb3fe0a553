from __future__ import annotations

import pytest
import torch
from torch import nn
from torchvision import models

from runner.base.errors import InvalidModelError
from runner.model import build_architecture, check_model, head_of
from runner.model.architectures import find_head_names

# The smallest classifier of each of torchvision's modules.
HEADS = {
    "alexnet": "classifier.6",
    "convnext_tiny": "classifier.2",
    "densenet121": "classifier",
    "efficientnet_b0": "classifier.1",
    "googlenet": "fc",
    "inception_v3": "fc",
    "maxvit_t": "classifier.5",
    "mnasnet0_5": "classifier.1",
    "mobilenet_v2": "classifier.1",
    "mobilenet_v3_small": "classifier.3",
    "resnet18": "fc",
    "shufflenet_v2_x0_5": "fc",
    "squeezenet1_0": "classifier.1",
    "swin_t": "head",
    "vgg11": "classifier.6",
    "vit_b_32": "heads.head",
}


@pytest.mark.parametrize(("name", "head"), HEADS.items())
def test_the_head_of_each_family_of_torchvision(name, head, torchvision_model):
    config = torchvision_model(name)
    with torch.device("meta"):
        module = build_architecture(config, 7)
    assert find_head_names(module) == (head,)
    assert head_of(module, config).weight.shape[0] == 7


@pytest.mark.parametrize("name", ["regnet_x_400mf", "regnet_y_400mf"])
def test_the_head_of_regnets(name, torchvision_model):
    config = torchvision_model(name)
    assert head_of(build_architecture(config, 7), config).weight.shape[0] == 7


def test_every_family_of_torchvision_is_covered():
    known = {models.get_model_builder(name).__module__ for name in (*HEADS, "regnet_x_400mf")}
    offered = {models.get_model_builder(name).__module__ for name in models.list_models(module=models)}
    assert offered == known


class Net(nn.Module):
    def __init__(self, **children: nn.Module) -> None:
        super().__init__()
        self.body = nn.Linear(4, 4)
        for name, child in children.items():
            self.add_module(name, child)


class Cosine(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.prototypes = nn.Parameter(torch.zeros(3, 4))


@pytest.mark.parametrize(
    ("children", "expected"),
    [
        ({"fc": nn.Linear(4, 3)}, "fc"),
        ({"head": nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3), nn.Identity())}, "head.2"),
        ({"head": Cosine()}, "head"),
        ({"fc": nn.Linear(4, 3), "head": nn.Identity()}, "fc"),
        ({"fc": nn.Linear(4, 3), "head": nn.Linear(4, 3)}, None),
        ({"last": nn.Linear(4, 3)}, None),
        ({"head": nn.Identity()}, None),
    ],
)
def test_heads_of_other_peoples_models(children, expected):
    assert find_head_names(Net(**children)) == (() if expected is None else (expected,))


def test_a_head_that_cannot_be_told_is_an_error(custom):
    with pytest.raises(InvalidModelError, match=r"'mine': can't tell .* Net needs exactly one .*it has body, last"):
        head_of(Net(last=nn.Linear(4, 3)), custom("mine"))


CODE = """
from torch import nn

def headless(num_classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(3 * 8 * 8, num_classes))
"""


def test_the_check_asks_for_a_head_only_if_one_is_needed(custom, install_models):
    install_models(CODE, headless="model_zoo_of_a_test:headless")
    check_model(custom("headless"), 3, image_size=8)
    with pytest.raises(InvalidModelError, match="can't tell which layer is the head"):
        check_model(custom("headless"), 3, image_size=8, needs_head=True)
