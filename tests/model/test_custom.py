from __future__ import annotations

import sys

import pytest
import torch

from runner.base.errors import InvalidModelError
from runner.model import build_architecture, build_model

MODULE = "model_zoo_of_a_test"
CODE = """
import torch
from torch import nn

SETTING = 5

class Tiny(nn.Module):
    def __init__(self, num_classes, width):
        super().__init__()
        self.conv = nn.Conv2d(3, width, 3, padding=1)
        self.head = nn.Linear(width, num_classes)

    def forward(self, images):
        return self.head(self.conv(images).mean((2, 3)))

def tiny(num_classes, width=4):
    return Tiny(num_classes, width)

def halved(num_classes):
    return Tiny(num_classes, 4).bfloat16().eval()

def failing(num_classes):
    raise RuntimeError("no such file: vocabulary.json")

def number(num_classes):
    return num_classes

def empty(num_classes):
    return nn.Identity()

def lazy(num_classes):
    return nn.LazyLinear(num_classes)

def bodiless(num_classes):
    return nn.Linear(3, num_classes, device="meta")
"""


@pytest.fixture(autouse=True)
def installed(install_models):
    names = ("tiny", "halved", "failing", "number", "empty", "lazy", "bodiless")
    setting = {"setting": f"{MODULE}:SETTING", "gone": f"{MODULE}:gone", "absent": "no_such_module_of_a_test:net"}
    install_models(CODE, **{name: f"{MODULE}:{name}" for name in names}, **setting)


def test_a_model_of_an_installed_package(custom):
    built = build_model(custom("tiny", width=6), 3)
    assert built.preprocessing is None
    assert built.module.conv.out_channels == 6
    assert built.module(torch.rand(2, 3, 8, 8)).shape == (2, 3)


def test_the_seed_decides_the_weights(custom, same_values):
    torch.manual_seed(7)
    first = build_architecture(custom("tiny"), 3)
    torch.manual_seed(7)
    assert same_values(first, build_architecture(custom("tiny"), 3))


def test_a_model_is_brought_to_fp32_and_training_mode(custom):
    module = build_architecture(custom("halved"), 3)
    assert {value.dtype for value in module.parameters()} == {torch.float32}
    assert module.training
    assert module.conv.training


def test_an_unknown_name_lists_what_is_installed(custom):
    with pytest.raises(InvalidModelError, match=r"'tinny': no installed .*absent, .*tiny; did you mean tiny\?"):
        build_architecture(custom("tinny"), 3)


def test_an_error_says_that_no_entry_point_is_installed(custom, monkeypatch):
    monkeypatch.setattr(sys, "path", [path for path in sys.path if "site_" + MODULE not in path])
    with pytest.raises(InvalidModelError, match=r"runner\.models; none is installed$"):
        build_architecture(custom("tiny"), 3)


def test_a_name_that_two_packages_offer(custom, install_models):
    install_models(CODE, module="other_zoo_of_a_test", tiny="other_zoo_of_a_test:tiny")
    with pytest.raises(InvalidModelError, match=rf"more than once .*: {MODULE}:tiny, other_zoo_of_a_test:tiny; uninst"):
        build_architecture(custom("tiny"), 3)


@pytest.mark.parametrize(
    ("name", "message", "cause"),
    [
        ("failing", r"called with \(3\), failed: RuntimeError: no such file: vocabulary.json", RuntimeError),
        ("gone", "can't be imported: AttributeError", AttributeError),
        ("absent", "can't be imported: ModuleNotFoundError: .*no_such_module_of_a_test", ModuleNotFoundError),
        ("setting", "is a int; it must be a function", None),
        ("number", "returned a int; it must return a torch.nn.Module", None),
        ("empty", "returned a Identity without parameters", None),
        ("lazy", r"lazy layers without a size \(weight, bias\)", None),
        ("bodiless", r"on the meta device, which hold no values \(weight, bias\)", None),
    ],
)
def test_a_model_that_cannot_be_built(name, message, cause, custom):
    with pytest.raises(InvalidModelError, match=message) as caught:
        build_architecture(custom(name), 3)
    assert MODULE in str(caught.value) or name == "absent"
    assert type(caught.value.__cause__) is (cause or type(None))


def test_arguments_that_the_factory_does_not_know(custom):
    with pytest.raises(InvalidModelError, match=r"called with \(3, depth=2\), failed: TypeError: .*'depth'"):
        build_architecture(custom("tiny", depth=2), 3)
