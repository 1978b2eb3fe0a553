from __future__ import annotations

import json
from types import SimpleNamespace

import pytest

import runner
from runner.trainer.meter import Clock
from tests.conftest import SMALL_NET

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
    with clock.runs_for("train"):
        moment.now += 3
        with clock.runs_for("data_wait"):
            moment.now += 1
    with pytest.raises(ZeroDivisionError), clock.runs_for("evaluation"):
        moment.now += 2
        raise ZeroDivisionError
    moment.now += 0.5
    told = {"train_seconds": 4, "data_wait_seconds": 1, "evaluation_seconds": 2, "checkpoint_seconds": 0}
    assert clock.to_json() == {**told, "epoch_seconds": 6.5}
    other = Clock()
    other.restore(json.loads(json.dumps(clock.to_json())))
    other.start()
    with other.runs_for("checkpoint"):
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
