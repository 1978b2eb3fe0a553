from __future__ import annotations

import json
import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import runner
from runner.base.keyed_random import digest_of_samples
from runner.dist.collectives import single_process
from runner.trainer.meter import Clock, Meter, Totals
from tests.conftest import SMALL_NET

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


SMALL = (*SMALL_NET, "trainer.ema_decay=null", "trainer.print_every=100")


@pytest.fixture
def moment(monkeypatch):
    """A clock that stands still until it is moved."""
    moment = SimpleNamespace(now=50.0)
    monkeypatch.setattr("runner.trainer.meter.time", SimpleNamespace(perf_counter=lambda: moment.now))
    return moment


def test_parts_add_up_and_outlast_a_checkpoint(moment):
    clock = Clock()
    moment.now += 7
    clock.start()
    with clock.measure("train"):
        moment.now += 3
        with clock.measure("data_wait"):
            moment.now += 1
    with pytest.raises(ZeroDivisionError), clock.measure("evaluation"):
        moment.now += 2
        raise ZeroDivisionError
    moment.now += 0.5
    told = {"train_seconds": 4, "data_wait_seconds": 1, "evaluation_seconds": 2, "checkpoint_seconds": 0}
    assert clock.to_json() == {**told, "epoch_seconds": 6.5}
    other = Clock()
    other.restore(json.loads(json.dumps(clock.to_json())))
    other.start()
    with other.measure("checkpoint"):
        moment.now += 10
    assert other.to_json() == {**told, "checkpoint_seconds": 10, "epoch_seconds": 16.5}


def test_what_the_device_still_has_to_do_is_training(tiny, moment, monkeypatch):
    def taking(seconds, function):
        def slow(*args, **kwargs):
            moment.now += seconds
            return function(*args, **kwargs)

        return slow

    from runner.run.checkpoint_writer import CheckpointWriter
    from runner.trainer import epoch_end
    from runner.trainer.meter import Meter

    monkeypatch.setattr(Meter, "first_bad_step", taking(100, Meter.first_bad_step))  # waits for the device
    monkeypatch.setattr(CheckpointWriter, "submit", taking(10, CheckpointWriter.submit))
    monkeypatch.setattr(epoch_end, "evaluate", taking(1, epoch_end.evaluate))
    run_dir = runner.fit(runner.load_config(tiny(*SMALL, "trainer.epochs=2"))).run_dir
    first, second = map(json.loads, (run_dir / "metrics.jsonl").read_text().splitlines())
    times = [(row["train_seconds"], row["evaluation_seconds"], row["checkpoint_seconds"]) for row in (first, second)]
    # The checkpoint at the end of an epoch comes after its row.
    assert times == [(100, 1, 0), (200, 1, 10)]
    assert [row["epoch_seconds"] for row in (first, second)] == [101, 211]
    assert first["train_images_per_second"] == first["train_images"] / 100
