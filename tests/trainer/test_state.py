"""The state of a training saves and restores itself."""

from __future__ import annotations

import json
import math

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from runner.base.errors import CheckpointError, NonFiniteLossError
from runner.base.stop import StopRequest
from runner.config.schema.optimizer import AdamWConfig
from runner.dist.collectives import single_process
from runner.dist.device import Precision
from runner.optimizer import build_optimizer
from runner.run.checkpoint import Checkpoint
from runner.trainer.progress import Best
from runner.trainer.state import MovingAverage, Placement, TrainingState

CPU = torch.device("cpu")
ADAMW = AdamWConfig(
    name="adamw",
    lr=0.1,
    lr_scaling="none",
    betas=(0.9, 0.999),
    eps=1e-8,
    weight_decay=0.01,
    decay_norm_and_bias=False,
    groups=(),
    layer_decay=None,
)


def begun(seed: int, *, num_classes: int = 2) -> TrainingState:
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(4 * 36, num_classes))
    placement = Placement(
        dist=single_process(CPU),
        precision=Precision(name="fp32", reason=""),
        memory_format=torch.contiguous_format,
        stop=StopRequest(),
    )
    return TrainingState(model, build_optimizer(ADAMW, model), placement, ema=MovingAverage(model, 0.9))


def take_a_step(state: TrainingState) -> None:
    torch.manual_seed(state.progress.step)
    images, labels = torch.rand(4, 3, 8, 8), torch.tensor([0, 1, 0, 1])
    logits = state.model(images)
    loss = functional.cross_entropy(logits, labels)
    loss.backward()
    state.optimizer.step()
    state.optimizer.zero_grad()
    state.ema.update()
    state.meter.add(loss.detach(), logits.detach(), labels, state.progress.step + 1)
    state.progress.advance(state.progress.position + 4)
    state.learning_rate = 0.1 / state.progress.step


def saved(state: TrainingState) -> Checkpoint:
    tensors = {stem: {name: value.clone() for name, value in group.items()} for stem, group in state.tensors().items()}
    return Checkpoint(name="0000-00000003", state=json.loads(json.dumps(state.capture())), tensors=tensors)


def without_clock(values: dict) -> dict:
    meter = {key: value for key, value in values["meter"].items() if "second" not in key}
    return {**values, "meter": meter}


def test_what_was_restored_is_what_was_saved_and_continues_alike():
    state, other = begun(0), begun(1)
    for _ in range(3):
        take_a_step(state)
    checkpoint = saved(state)
    other.restore(checkpoint)
    assert without_clock(other.capture()) == without_clock(checkpoint.state)
    for each in (state, other):
        take_a_step(each)
    assert without_clock(other.capture()) == without_clock(state.capture())
    for stem, group in state.tensors().items():
        for name, value in group.items():
            assert torch.equal(value, other.tensors()[stem][name]), (stem, name)


def test_a_checkpoint_of_another_model_is_refused():
    checkpoint = saved(begun(0, num_classes=3))
    with pytest.raises(CheckpointError, match="checkpoint 0000-00000003 fits another model"):
        begun(0).restore(checkpoint)


def test_a_checkpoint_without_the_average_is_refused():
    checkpoint = saved(begun(0))
    del checkpoint.tensors["ema"]
    with pytest.raises(CheckpointError, match=r"holds no ema\.safetensors"):
        begun(0).restore(checkpoint)


def test_an_epochs_end_empties_the_meter_and_keeps_the_best():
    state = begun(0)
    take_a_step(state)
    best = Best(metric="val_top1", value=0.5, epoch=1, checkpoint="0001-00000001", weights="raw")
    state.end_epoch([best], val_loss=1.0)
    assert (state.progress.epoch, state.progress.position, state.progress.best) == (1, 0, best)
    assert state.meter.read().loss == 0


def test_a_bad_loss_is_named_by_its_step():
    state = begun(0)
    take_a_step(state)
    state.check_loss()
    state.meter.add(torch.tensor(math.inf), torch.eye(2), torch.tensor([0, 1]), step=2)
    with pytest.raises(NonFiniteLossError, match=r"at epoch 1, step 2, learning rate 0\.1; try a lower optimizer\.lr"):
        state.check_loss()


def test_infinite_weights_are_named_by_the_newest_step():
    state = begun(0)
    take_a_step(state)
    state.check_weights()
    with torch.no_grad():
        state.model[0].bias[1] = math.nan
    with pytest.raises(NonFiniteLossError, match="the weights became infinite or not a number at epoch 1, step 1"):
        state.check_weights()


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
