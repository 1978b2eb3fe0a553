import json
import math

import pytest
import torch

from runner.dist import single_process
from runner.errors import NonFiniteLossError
from runner.trainer.meter import Meter, Totals

CPU = torch.device("cpu")


def test_sums_are_of_images_not_of_batches():
    meter = Meter(CPU)
    meter.add(torch.tensor(3.0), torch.eye(3), torch.tensor([0, 1, 0]), step=1)
    meter.add(torch.tensor(1.0), torch.eye(1), torch.tensor([0]), step=1)
    assert meter.read() == Totals(loss=4.0, correct=3, count=4)
    assert meter.read_all(single_process(CPU)) == Totals(loss=4.0, correct=3, count=4)
    assert (meter.read().mean_loss, meter.read().top1) == (1.0, 0.75)
    assert math.isnan(Totals().mean_loss)


def test_sums_survive_json():
    meter, other = Meter(CPU), Meter(CPU)
    meter.add(torch.tensor(0.1), torch.eye(1), torch.tensor([0]), step=1)
    other.restore(json.loads(json.dumps(meter.to_json())))
    assert other.read() == meter.read()


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_the_first_bad_loss_is_named(value):
    meter = Meter(CPU)
    for step, loss in enumerate([1.0, value, 1.0, math.nan], 1):
        meter.add(torch.tensor(loss), torch.eye(1), torch.tensor([0]), step=step)
    with pytest.raises(NonFiniteLossError, match=r"epoch 4, step 2, learning rate 0\.5"):
        meter.check_finite(single_process(torch.device("cpu")), epoch=4, learning_rate=0.5)


def test_finite_losses_pass():
    meter = Meter(CPU)
    meter.add(torch.tensor(1e30), torch.eye(1), torch.tensor([0]), step=1)
    meter.check_finite(single_process(torch.device("cpu")), epoch=1, learning_rate=0.5)
