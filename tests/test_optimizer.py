import pytest
import torch
from torch import nn

from runner.base.errors import CheckpointError
from runner.config.schema.optimizer import AdamWConfig, SGDConfig
from runner.optimizer import build_optimizer, load_named_state, named_state, peak_learning_rate


def sgd(**changes):
    values = {"name": "sgd", "lr": 0.1, "lr_scaling": "linear", "momentum": 0.9, "nesterov": True}
    return SGDConfig(**{**values, "weight_decay": 0.01, "decay_norm_and_bias": True, **changes})


def adamw(**changes):
    values = {"name": "adamw", "lr": 0.1, "lr_scaling": "linear", "betas": (0.9, 0.999), "eps": 1e-8}
    return AdamWConfig(**{**values, "weight_decay": 0.01, "decay_norm_and_bias": False, **changes})


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


@pytest.mark.parametrize("config", [sgd(), adamw(), sgd(decay_norm_and_bias=False)])
def test_state_survives_a_round_trip_bit_for_bit(net, config):
    first = build_optimizer(config, net)
    one_step(net, first)
    saved_weights = {name: value.clone() for name, value in net.state_dict().items()}
    saved_state = {name: value.clone() for name, value in named_state(first, net).items()}
    assert saved_state
    one_step(net, first)
    expected = {name: value.clone() for name, value in net.state_dict().items()}

    net.load_state_dict(saved_weights)
    second = build_optimizer(config, net)
    load_named_state(second, net, saved_state)
    one_step(net, second)
    assert all(torch.equal(expected[name], value) for name, value in net.state_dict().items())


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
