import json
import math

import numpy as np
import pytest
import torch

from runner.base.keyed_random import digest_of_samples
from runner.dist.collectives import single_process
from runner.trainer.meter import Meter, Totals

CPU = torch.device("cpu")


def test_sums_are_of_images_not_of_batches():
    meter = Meter(CPU)
    meter.add(torch.tensor(3.0), torch.eye(3), torch.tensor([0, 1, 0]), step=1)
    meter.add(torch.tensor(1.0), torch.eye(1), torch.tensor([0]), step=1)
    meter.count_samples(0, np.array([5, 9, 7]))
    meter.count_samples(3, np.array([2]))
    expected = Totals(loss=4.0, correct=3, count=4, samples_digest=digest_of_samples(0, np.array([5, 9, 7, 2])))
    assert meter.read() == expected
    assert meter.read_all(single_process(CPU)) == expected
    assert (meter.read().mean_loss, meter.read().top1) == (1.0, 0.75)
    assert math.isnan(Totals().mean_loss)


def test_sums_survive_json():
    meter, other = Meter(CPU), Meter(CPU)
    meter.add(torch.tensor(0.1), torch.eye(1), torch.tensor([0]), step=1)
    meter.count_samples(0, np.arange(100))
    other.restore(json.loads(json.dumps(meter.to_json(single_process(CPU)))), is_main=True)
    assert other.read() == meter.read()
    other = Meter(CPU)
    other.restore(meter.to_json(single_process(CPU)), is_main=False)
    assert other.read() == Totals()


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_the_first_bad_loss_is_named(value):
    meter = Meter(CPU)
    for step, loss in enumerate([1.0, value, 1.0, math.nan], 1):
        meter.add(torch.tensor(loss), torch.eye(1), torch.tensor([0]), step=step)
    assert meter.first_bad_step() == 2


def test_finite_losses_pass():
    meter = Meter(CPU)
    meter.add(torch.tensor(1e30), torch.eye(1), torch.tensor([0]), step=1)
    assert meter.first_bad_step() is None
