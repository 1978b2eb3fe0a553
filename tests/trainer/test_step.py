import torch
from torch import nn

from runner.trainer.step import set_training_mode


def test_a_frozen_backbone_learns_nothing_and_keeps_its_statistics():
    head = nn.Linear(4, 2)
    module = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Dropout(), head)
    set_training_mode(module, head)
    statistics = module[1].running_mean.clone()
    module(torch.randn(8, 3)).sum().backward()
    assert torch.equal(statistics, module[1].running_mean)
    assert [parameter.grad is not None for parameter in module.parameters()] == [False] * 4 + [True] * 2

    set_training_mode(module, None)
    module(torch.randn(8, 3)).sum().backward()
    assert not torch.equal(statistics, module[1].running_mean)
    assert all(parameter.grad is not None for parameter in module.parameters())
