"""The moving average of the weights."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from runner.trainer.average import MovingAverage

DECAY = 0.9


def model() -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.LazyLinear(2))


@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
def test_it_is_the_average_that_torch_takes(memory_format):
    torch.manual_seed(0)
    images = torch.rand(4, 3, 8, 8)
    module = model()
    module(images)
    module = module.to(memory_format=memory_format)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.01)
    expected = AveragedModel(module, multi_avg_fn=get_ema_multi_avg_fn(DECAY), use_buffers=True)
    average = MovingAverage(module, DECAY)
    for _ in range(4):
        module(images).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        expected.update_parameters(module)
        average.update()
    state = average.module.state_dict()
    assert int(state.pop("1.num_batches_tracked")) == 5, "a count is no average"
    for name, value in state.items():
        assert torch.equal(value, expected.module.state_dict()[name]), name
    assert not torch.equal(state["0.weight"], module[0].weight)
    assert average.num_updates == int(expected.n_averaged) == 4


def test_a_model_without_buffers():
    module = nn.Linear(2, 2)
    average = MovingAverage(module, DECAY)
    before = module.weight.detach().clone()
    average.update()
    with torch.no_grad():
        module.weight.add_(1)
    average.update()
    torch.testing.assert_close(average.module.weight, before + (1 - DECAY))


def test_a_buffer_that_is_replaced_is_followed():
    class Replacing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("mean", torch.zeros(2))

    module = Replacing()
    average = MovingAverage(module, DECAY)
    average.update()
    module.mean = torch.ones(2)
    average.update()
    torch.testing.assert_close(average.module.mean, torch.full((2,), 1 - DECAY))
