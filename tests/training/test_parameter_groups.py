from __future__ import annotations

import pytest
import timm
from timm.optim import param_groups_layer_decay

import runner
from runner.base.errors import ConfigError, InvalidModelError
from runner.launch.preflight import preflight
from runner.model.check import without_values
from runner.optimizer import build_optimizer, set_learning_rate
from runner.training.parameter_groups import log_groups, parameter_groups

DECAY = ("optimizer=adamw", "optimizer.layer_decay=0.65", "optimizer.lr_scaling=none")
RESNET = ("model=resnet18", "model.stem=small")


@pytest.mark.parametrize("name", ["test_vit", "test_convnext"])
def test_rates_and_decay_are_those_of_timm(tiny, name):
    """For every parameter, against timm.optim.param_groups_layer_decay."""
    config = runner.load_config(tiny("model=timm", f"model.name={name}", *DECAY, "optimizer.weight_decay=0.05"))
    module = timm.create_model(name, num_classes=3)
    theirs = {
        id(parameter): (0.01 * group["lr_scale"], group["weight_decay"])
        for group in param_groups_layer_decay(module, weight_decay=0.05, layer_decay=0.65)
        for parameter in group["params"]
    }
    optimizer = build_optimizer(config.optimizer, module, parameter_groups(config, module))
    set_learning_rate(optimizer, 0.01)
    ours = {
        id(parameter): (group["lr"], group["weight_decay"])
        for group in optimizer.param_groups
        for parameter in group["params"]
    }
    assert ours == theirs
    assert len({rate for rate, _ in ours.values()}) > 2


def test_the_rates_of_a_resnet_follow_the_closed_formula(tiny):
    config = runner.load_config(tiny(*RESNET, *DECAY))
    groups = parameter_groups(config, without_values(config.model, 3))
    rates = {name.partition(".")[0]: group.lr_multiplier for group in groups for name in group.names}
    # 1 for the head, 0.65 to the power of the number of stages after it for the others.
    names = ("conv1", "layer1", "layer2", "layer3", "layer4", "fc")
    assert rates == {"bn1": 0.65**5, **{name: 0.65 ** (5 - number) for number, name in enumerate(names)}}


def test_the_table_counts_tensors_and_numbers(tiny, messages):
    config = runner.load_config(tiny(*RESNET, "optimizer.groups=[{part: head, lr_multiplier: 10}]"))
    module = without_values(config.model, 3)
    log_groups(parameter_groups(config, module), module, 0.01)
    rows = [message.split() for message in messages]
    assert rows[1:] == [
        ["0:", "head", "2", "1,539", "0.1", "0.0001"],
        ["the", "rest", "60", f"{sum(p.numel() for p in module.parameters()) - 1539:,}", "0.01", "0.0001"],
    ]


@pytest.mark.parametrize(
    ("typed", "error", "said"),
    [
        ("optimizer.groups=[{pattern: 'layer5.*'}]", ConfigError, r"groups\.0\.pattern.*layer[1-4]\.\*"),
        ("optimizer.groups=[{lr_multiplier: 3}]", ConfigError, "either a pattern of parameter names, or a part"),
    ],
)
def test_a_rule_is_refused_before_anything_is_made(tiny, typed, error, said):
    with pytest.raises(error, match=f"(?s){said}"):
        preflight(runner.load_config(tiny(*RESNET, typed)))


def test_layer_decay_of_a_model_without_an_order_is_refused_before_training(tiny):
    with pytest.raises(InvalidModelError, match="needs the order of the layers"):
        preflight(runner.load_config(tiny("model=torchvision", "model.name=mobilenet_v3_small", *DECAY)))
