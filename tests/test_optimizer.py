import sys

import pytest
import torch
from torch import nn

from runner.base.errors import CheckpointError, ConfigError, MissingPackageError
from runner.config.schema.optimizer import AdamWConfig, GroupRule, LAMBConfig, LARSConfig, MuonConfig, SGDConfig
from runner.optimizer import (
    build_optimizer,
    check_optimizer,
    group_parameters_of,
    load_named_state,
    named_state,
    peak_learning_rate,
    set_learning_rate,
)

PLAIN = {"groups": (), "layer_decay": None}


def sgd(**changes):
    values = {"name": "sgd", "lr": 0.1, "lr_scaling": "linear", "momentum": 0.9, "nesterov": True, **PLAIN}
    return SGDConfig(**{**values, "weight_decay": 0.01, "decay_norm_and_bias": True, **changes})


def adamw(**changes):
    values = {"name": "adamw", "lr": 0.1, "lr_scaling": "linear", "betas": (0.9, 0.999), "eps": 1e-8, **PLAIN}
    return AdamWConfig(**{**values, "weight_decay": 0.01, "decay_norm_and_bias": False, **changes})


def lars(**changes):
    values = {"name": "lars", "lr": 0.1, "lr_scaling": "linear", "momentum": 0.9, "nesterov": False, **PLAIN}
    spared = {"weight_decay": 0.01, "decay_norm_and_bias": False, "trust_coefficient": 0.02}
    return LARSConfig(**{**values, **spared, **changes})


def lamb(**changes):
    return LAMBConfig(**{**adamw().model_dump(), "name": "lamb", **changes})


def muon(**changes):
    return MuonConfig(**{**adamw().model_dump(), "name": "muon", "momentum": 0.95, "nesterov": True, **changes})


CONFIGS = [sgd(), adamw(), sgd(decay_norm_and_bias=False), lars(), lamb(), muon()]


def small_net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.LazyLinear(2))


def one_step(module: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    torch.manual_seed(1)
    module(torch.randn(4, 3, 5, 5)).square().sum().backward()
    optimizer.step()
    optimizer.zero_grad()


@pytest.fixture
def net() -> nn.Module:
    module = small_net()
    module(torch.zeros(2, 3, 5, 5))
    return module


def test_linear_scaling_multiplies_with_the_world_size():
    assert peak_learning_rate(sgd(), 16) == pytest.approx(1.6)
    assert peak_learning_rate(sgd(lr_scaling="none"), 16) == pytest.approx(0.1)


def test_all_parameters_decay_or_only_those_with_two_dimensions(net):
    together = build_optimizer(sgd(), net)
    assert [group["weight_decay"] for group in together.param_groups] == [0.01]
    apart = build_optimizer(sgd(decay_norm_and_bias=False), net)
    decayed, spared = apart.param_groups
    assert (decayed["weight_decay"], spared["weight_decay"]) == (0.01, 0.0)
    assert all(parameter.ndim > 1 for parameter in decayed["params"])
    assert len(decayed["params"]) + len(spared["params"]) == len(list(net.parameters()))


@pytest.mark.parametrize("config", CONFIGS)
def test_state_survives_a_round_trip_bit_for_bit(net, config):
    first = build_optimizer(config, net)
    one_step(net, first)
    saved_weights = {name: value.clone() for name, value in net.state_dict().items()}
    saved_state = {name: value.clone() for name, value in named_state(first, net).items()}
    assert saved_state
    one_step(net, first)
    expected = {name: value.clone() for name, value in net.state_dict().items()}

    def go_on(state):
        net.load_state_dict(saved_weights)
        second = build_optimizer(config, net)
        load_named_state(second, net, state)
        one_step(net, second)
        return all(torch.equal(expected[name], value) for name, value in net.state_dict().items())

    assert go_on(saved_state)
    assert not go_on({})
    for left_out in saved_state:
        incomplete = {name: value for name, value in saved_state.items() if name != left_out}
        # A parameter with one entry has none without it.
        if len([name for name in saved_state if name.rpartition("/")[0] == left_out.rpartition("/")[0]]) > 1:
            with pytest.raises(CheckpointError, match="lacks"):
                go_on(incomplete)


def test_state_of_another_model_is_refused(net):
    with pytest.raises(CheckpointError, match="other/momentum_buffer"):
        load_named_state(build_optimizer(sgd(), net), net, {"other/momentum_buffer": torch.zeros(1)})
    with pytest.raises(CheckpointError, match=r"0\.weight/momentum_buffer"):
        load_named_state(build_optimizer(sgd(), net), net, {"0.weight/momentum_buffer": torch.zeros(7)})


def test_parameters_may_join_later(net):
    """torch's fused step fails where some parameters have a momentum buffer and others none."""
    optimizer = build_optimizer(sgd(), net)
    net[0].requires_grad_(False)
    one_step(net, optimizer)
    net[0].requires_grad_(True)
    before = net[0].weight.clone()
    one_step(net, optimizer)
    assert not torch.equal(before, net[0].weight)


def test_the_first_step_is_that_of_plain_torch(net):
    import copy

    other = copy.deepcopy(net)
    plain = torch.optim.SGD(other.parameters(), lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.01, fused=True)
    ours = build_optimizer(sgd(), net)
    for _ in range(2):
        one_step(net, ours)
        one_step(other, plain)
    assert all(torch.equal(a, b) for a, b in zip(net.parameters(), other.parameters(), strict=True))


def ruled(*rules, **changes):
    return adamw(groups=tuple(GroupRule(**rule) for rule in rules), **changes)


def test_the_first_rule_that_matches_applies_and_only_that_one(net):
    config = ruled(
        {"part": "head", "lr_multiplier": 10.0},
        {"pattern": "*.bias", "lr_multiplier": 2.0, "weight_decay": 0.3},
        {"part": "norm_and_bias", "lr_multiplier": 0.5},
    )
    groups = group_parameters_of(config, net, head={"3.weight", "3.bias"})
    assert [(group.rule, group.names, group.lr_multiplier, group.weight_decay) for group in groups] == [
        ("0: head", ("3.weight",), 10.0, 0.01),
        ("0: head", ("3.bias",), 10.0, 0.0),
        ("1: *.bias", ("0.bias", "1.bias"), 2.0, 0.3),
        ("2: norm_and_bias", ("1.weight",), 0.5, 0.0),
        ("the rest", ("0.weight",), 1.0, 0.01),
    ]
    optimizer = build_optimizer(config, net, groups)
    set_learning_rate(optimizer, 0.2)
    assert [group["lr"] for group in optimizer.param_groups] == pytest.approx([2.0, 2.0, 0.4, 0.1, 0.2])


def test_the_backbone_is_all_but_the_head_and_a_rate_of_zero_leaves_it_as_it_is(net):
    config = ruled({"part": "backbone", "lr_multiplier": 0.0, "weight_decay": 0.0})
    optimizer = build_optimizer(config, net, group_parameters_of(config, net, head={"3.weight", "3.bias"}))
    set_learning_rate(optimizer, 0.1)
    before = {name: value.clone() for name, value in net.named_parameters()}
    one_step(net, optimizer)
    assert {name for name, value in net.named_parameters() if not torch.equal(value, before[name])} == {
        "3.weight",
        "3.bias",
    }


@pytest.mark.parametrize(
    ("rules", "key", "said"),
    [
        (({"pattern": "3.wieght"},), "optimizer.groups.0.pattern", "matches no parameter .*near it: 3.weight"),
        (({"part": "norm_and_bias"}, {"pattern": "*.bias"}), "optimizer.groups.1.pattern", "rules before it"),
        (({"pattern": "*"}, {"part": "norm_and_bias"}), "optimizer.groups.1.part", "rules before it"),
    ],
)
def test_a_rule_that_chooses_nothing_is_refused(net, rules, key, said):
    with pytest.raises(ConfigError, match=said) as caught:
        group_parameters_of(ruled(*rules), net)
    assert [problem.key for problem in caught.value.problems] == [key]


def test_a_rule_and_the_decay_of_its_layer_multiply(net):
    layers = {"0.weight": 0, "0.bias": 0, "1.weight": 0, "1.bias": 0, "3.weight": 1, "3.bias": 1}
    config = ruled({"pattern": "0.*", "lr_multiplier": 0.1}, layer_decay=0.5, decay_norm_and_bias=True)
    groups = group_parameters_of(config, net, layers=layers)
    assert [(group.rule, len(group.names), group.lr_multiplier) for group in groups] == [
        ("0: 0.*, layer 0", 2, pytest.approx(0.05)),
        ("the rest, layer 0", 2, 0.5),
        ("the rest, layer 1", 2, 1.0),
    ]


@pytest.mark.parametrize("config", CONFIGS)
def test_a_state_that_was_saved_with_two_groups_loads_into_others(net, config):
    first = build_optimizer(config, net)
    one_step(net, first)
    saved = named_state(first, net)
    rule = GroupRule(pattern="0.*", lr_multiplier=0.1)
    second = build_optimizer(config.model_copy(update={"groups": (rule,)}), net)
    load_named_state(second, net, saved)
    found = named_state(second, net)
    assert found.keys() == saved.keys()
    assert all(torch.equal(found[name], value) for name, value in saved.items())


def trained(config, net, num_steps=3):
    """The parameters after some steps, before them, and the gradients of each step."""
    optimizer, gradients = build_optimizer(config, net), []
    before = {name: value.detach().clone() for name, value in net.named_parameters()}
    for step in range(num_steps):
        torch.manual_seed(step)
        net(torch.randn(4, 3, 5, 5)).square().sum().backward()
        gradients.append({name: value.grad.clone() for name, value in net.named_parameters()})
        optimizer.step()
        optimizer.zero_grad()
    return dict(net.named_parameters()), before, gradients


def test_lars_takes_the_step_of_the_paper(net):
    """Algorithm 1 of You et al. 2017: the local rate is trust × |w| / (|g| + decay × |w|); biases take SGD's step."""
    after, before, gradients = trained(lars(), net)
    for name, weight in before.items():
        expected, decay, momentum = weight, (0.01 if weight.ndim > 1 else 0.0), torch.zeros_like(weight)
        for gradient in (step[name] for step in gradients):
            local = 0.02 * expected.norm() / (gradient.norm() + decay * expected.norm()) if decay else 1.0
            momentum = 0.9 * momentum + local * (gradient + decay * expected)
            expected = expected - 0.1 * momentum
        torch.testing.assert_close(after[name].detach(), expected)


def test_lamb_takes_the_step_of_the_paper(net):
    """Algorithm 2 of You et al. 2020, with the bias corrections of Adam; biases take Adam's step."""
    after, before, gradients = trained(lamb(), net)
    for name, weight in before.items():
        expected, decay = weight, 0.01 if weight.ndim > 1 else 0.0
        mean, square = torch.zeros_like(weight), torch.zeros_like(weight)
        for step, gradient in enumerate((step[name] for step in gradients), 1):
            mean, square = 0.9 * mean + 0.1 * gradient, 0.999 * square + 0.001 * gradient.square()
            update = (mean / (1 - 0.9**step)) / ((square / (1 - 0.999**step)).sqrt() + 1e-8) + decay * expected
            ratio = expected.norm() / update.norm() if decay else 1.0
            expected = expected - 0.1 * ratio * update
        torch.testing.assert_close(after[name].detach(), expected)


def test_without_timm_its_optimizers_are_refused_with_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "timm.optim", None)
    with pytest.raises(MissingPackageError, match=r"optimizer=lamb needs timm.*pip install"):
        check_optimizer(lamb())
    check_optimizer(sgd())


def test_muon_is_torchs_for_matrices_and_nadamw_or_adamw_for_the_rest():
    """torch's Muon has Jordan's coefficients, timm's by default those that were optimised later (You 2024)."""
    torch.manual_seed(0)
    matrix, bias = nn.Linear(8, 6), nn.Linear(8, 6)
    bias.load_state_dict(matrix.state_dict())
    ours = build_optimizer(muon(nesterov=False), matrix)
    for group in ours.param_groups:
        group["ns_coefficients"] = "original"
    theirs = [
        torch.optim.Muon([bias.weight], lr=0.1, weight_decay=0.01, momentum=0.95, nesterov=False,
                         adjust_lr_fn="match_rms_adamw"),
        torch.optim.AdamW([bias.bias], lr=0.1, weight_decay=0.0),
    ]  # fmt: skip
    for step in range(3):
        torch.manual_seed(step)
        images = torch.randn(4, 8)
        for module, optimizers in ((matrix, [ours]), (bias, theirs)):
            module(images).square().sum().backward()
            for optimizer in optimizers:
                optimizer.step()
                optimizer.zero_grad()
    torch.testing.assert_close(matrix.bias, bias.bias)
    torch.testing.assert_close(matrix.weight, bias.weight, rtol=1e-2, atol=1e-3)  # Both round to bf16 within a step.
