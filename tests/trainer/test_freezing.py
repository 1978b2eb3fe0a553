from __future__ import annotations

import pytest
import torch
from torch import nn

import runner
from runner.base.errors import ConfigError, PreflightError
from runner.launch.preflight import preflight
from runner.trainer.freezing import check_unfreeze, learning_names, set_training_mode

STAGES = (
    "trainer.epochs=5",
    "trainer.freeze_backbone_epochs=4",
    "trainer.unfreeze=[{after_epochs: 1, pattern: '2.*'}]",
)


def small() -> nn.Sequential:
    block = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout())
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), block, nn.Linear(4, 2))


def learns(module: nn.Module) -> list[bool]:
    """Whether each parameter gets a gradient by a step in the mode that the module is in."""
    module.zero_grad(set_to_none=True)
    module(torch.randn(8, 3)).sum().backward()
    return [parameter.grad is not None for parameter in module.parameters()]


def test_a_frozen_backbone_learns_nothing_and_keeps_its_statistics():
    module = small()
    set_training_mode(module, module[3], {"3.weight", "3.bias"})
    statistics = module[1].running_mean.clone()
    assert learns(module) == [False] * 8 + [True] * 2
    assert torch.equal(statistics, module[1].running_mean)
    assert not module[2][2].training

    set_training_mode(module, module[3], None)
    assert all(learns(module))
    assert not torch.equal(statistics, module[1].running_mean)


def test_a_stage_learns_with_its_statistics_and_dropout_while_the_rest_is_frozen():
    module, trainer = small(), runner.load_config(STAGES).trainer
    learning = [learning_names(trainer, module, module[3], epoch) for epoch in range(5)]
    head, stage = {"3.weight", "3.bias"}, {"2.0.weight", "2.0.bias", "2.1.weight", "2.1.bias"}
    assert learning == [head, *[head | stage] * 3, None]
    set_training_mode(module, module[3], learning[1])
    frozen, learned = module[1].running_mean.clone(), module[2][1].running_mean.clone()
    assert learns(module) == [False] * 4 + [True] * 6
    assert torch.equal(frozen, module[1].running_mean)
    assert not torch.equal(learned, module[2][1].running_mean)
    assert [layer.training for layer in (module, module[1], module[2], module[2][2])] == [False, False, True, True]


def test_a_layer_that_learns_in_part_keeps_its_mode():
    module = small()
    set_training_mode(module, module[3], {"1.weight", "2.0.bias", "3.weight", "3.bias"})
    assert [name for name, layer in module.named_modules() if layer.training] == ["3"]


def test_a_pattern_that_matches_nothing_is_refused_with_what_is_near():
    trainer = runner.load_config(
        ["trainer.freeze_backbone_epochs=2", "trainer.unfreeze=[{after_epochs: 1, pattern: 2.7.*}]"]
    )
    with pytest.raises(ConfigError, match=r"trainer\.unfreeze\.0\.pattern = '2\.7\.\*': matches no parameter .*2\.\*"):
        check_unfreeze(trainer.trainer, small())


def test_it_is_refused_before_training(tiny):
    argv = tiny("trainer.freeze_backbone_epochs=1", "trainer.unfreeze=[{after_epochs: 0, pattern: layer9.*}]")
    with pytest.raises((ConfigError, PreflightError), match=r"trainer\.unfreeze\.0\.pattern"):
        preflight(runner.load_config(argv))


def test_a_stage_after_the_freeze_is_refused():
    with pytest.raises(ConfigError, match=r"after_epochs = 2: must be less than trainer\.freeze_backbone_epochs = 2"):
        runner.load_config(["trainer.freeze_backbone_epochs=2", "trainer.unfreeze=[{after_epochs: 2, pattern: a}]"])
