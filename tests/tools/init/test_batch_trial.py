from __future__ import annotations

import pytest
import torch

from runner.base.errors import DeviceError
from runner.config.compose import compose_one
from runner.tools.doctor import batch_size as batch_sizes
from runner.tools.doctor.short_training import Pace
from runner.tools.init.batch_trial import choose_batch_size, smallest_fast


def pace(images_per_second: float, peak_bytes: int = 0) -> Pace:
    values = dict.fromkeys(Pace.__dataclass_fields__, 0) | {"peak_bytes": peak_bytes}
    return Pace(**values | {"images_per_second": images_per_second})


@pytest.fixture
def measured(monkeypatch):
    """A function that replaces the measurements: speed, or an error, by batch size; it returns the sizes tried."""

    def measured(outcomes: dict[int, float | Exception], peak_bytes: int = 0) -> list[int]:
        tried: list[int] = []

        def train_briefly(bench, num_steps):
            size = bench.config.data.batch_size
            tried.append(size)
            if isinstance(outcomes[size], Exception):
                raise outcomes[size]
            return pace(outcomes[size], peak_bytes)

        monkeypatch.setattr(batch_sizes, "train_briefly", train_briefly)
        return tried

    return measured


def config_of(tiny, *more: str):
    return compose_one(tiny("dist.procs_per_node=1", "trainer.device=cpu", *more)).config


def test_a_real_trial_measures_each_size(tiny, tmp_path):
    choice = choose_batch_size(config_of(tiny), most=16)
    assert list(choice.images_per_second) == [8, 16]
    assert all(speed > 0 for speed in choice.images_per_second.values())
    assert choice.batch_size in (8, 16)
    assert list(tmp_path.iterdir()) == []


def test_the_smallest_that_is_nearly_as_fast_is_taken(tiny, measured):
    tried = measured({8: 10.0, 16: 19.0, 32: 20.0})
    assert choose_batch_size(config_of(tiny), most=33).batch_size == 16
    assert tried == [8, 16, 32]
    assert smallest_fast({2: 1.0}) == 2


def test_it_ends_where_memory_does(tiny, measured):
    measured({8: 10.0, 16: torch.OutOfMemoryError("CUDA out of memory")})
    assert choose_batch_size(config_of(tiny), most=40).images_per_second == {8: 10.0}
    measured({8: torch.OutOfMemoryError("CUDA out of memory")})
    with pytest.raises(DeviceError, match=r"batches of 8.*init\.measure=false"):
        choose_batch_size(config_of(tiny), most=40)


def test_a_size_that_would_fill_main_memory_is_not_tried(tiny, measured, monkeypatch):
    monkeypatch.setattr(batch_sizes, "available_memory", lambda: 2**30)
    tried = measured({8: 10.0, 16: 20.0}, peak_bytes=2**30)
    assert choose_batch_size(config_of(tiny), most=40).batch_size == 8
    assert tried == [8]


def test_another_error_is_not_taken_for_too_little_memory(tiny, measured):
    measured({8: RuntimeError("a defect")})
    with pytest.raises(RuntimeError, match="a defect"):
        choose_batch_size(config_of(tiny), most=40)
