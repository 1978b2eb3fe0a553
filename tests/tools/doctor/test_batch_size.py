from __future__ import annotations

import json
import subprocess
import sys

import pytest
import torch

from runner.base.errors import ConfigError, DeviceError
from runner.config.compose import compose_one
from runner.config.saved import load_saved
from runner.launch.preflight import preflight
from runner.tools.doctor import batch_size as batch_sizes
from runner.tools.doctor.batch_size import settle_batch_size


def ready_with(tiny, *more: str):
    return preflight(compose_one(tiny("dist.procs_per_node=1", "trainer.device=cpu", *more)).config)


@pytest.mark.long
def test_a_run_begins_with_the_size_that_was_found_and_resumes_with_it(tiny, tmp_path):
    command = [sys.executable, "-m", "runner"]
    given = tiny("data.batch_size=auto", "data.num_train=330", "trainer.max_steps=2", "dist.procs_per_node=1")
    run = subprocess.run([*command, *given], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    (record,) = tmp_path.glob("outputs/*/*/run.json")
    # Twenty steps of 16 images, and no room for 32.
    assert load_saved(record.parent).data.batch_size == 16
    assert "data.batch_size=auto" in json.loads(record.read_text())["overrides"]
    assert "batch size  16" in run.stdout
    again = subprocess.run([*command, "resume", f"run={record.parent}", "trainer.max_steps=3"], check=False)
    assert again.returncode == 0
    assert load_saved(record.parent).data.batch_size == 16


def test_a_number_stays_as_it_is(tiny, monkeypatch):
    monkeypatch.setattr(batch_sizes, "ProcessPoolExecutor", None)
    ready = ready_with(tiny, "data.batch_size=3")
    assert settle_batch_size(ready) is ready


@pytest.mark.parametrize(("num_processes", "found"), [(1, 32), (2, 16)])
def test_twenty_steps_are_left_for_each_process(tiny, monkeypatch, num_processes, found):
    monkeypatch.setattr(batch_sizes, "_pace_of", lambda ready, device, size, num_steps: _Pace(10**6 * size))
    config = ready_with(tiny, "data.batch_size=auto", "data.num_train=700", "trainer.compile=true").config
    dist = config.dist.model_copy(update={"procs_per_node": num_processes})
    assert batch_sizes._largest_fitting(config.model_copy(update={"dist": dist})) == found


def test_the_largest_that_fits_into_memory_is_taken(tiny, monkeypatch):
    monkeypatch.setattr(
        batch_sizes, "_pace_of", lambda ready, device, size, num_steps: None if size > 16 else _Pace(size)
    )
    config = ready_with(tiny, "data.batch_size=auto", "data.num_train=2000").config
    assert batch_sizes._largest_fitting(config) == 16
    monkeypatch.setattr(batch_sizes, "_pace_of", lambda *_: None)
    with pytest.raises(DeviceError, match="out of memory with batches of 8"):
        batch_sizes._largest_fitting(config)


def test_main_memory_is_not_filled(tiny, monkeypatch):
    tried = []
    monkeypatch.setattr(batch_sizes, "available_memory", lambda: 2**30)
    monkeypatch.setattr(
        batch_sizes, "_pace_of", lambda ready, device, size, num_steps: tried.append(size) or _Pace(size * 2**26)
    )
    assert batch_sizes._largest_fitting(ready_with(tiny, "data.batch_size=auto", "data.num_train=9000").config) == 16
    assert tried == [8, 16]


@pytest.mark.parametrize("dist", ["dist.nodes=2 dist.rendezvous=127.0.0.1:29511", "adopted"])
def test_several_machines_and_other_launchers_are_refused(tiny, monkeypatch, dist):
    if dist == "adopted":
        for name in ("RANK", "LOCAL_RANK"):
            monkeypatch.setenv(name, "0")
        for name in ("WORLD_SIZE", "LOCAL_WORLD_SIZE"):
            monkeypatch.setenv(name, "2")
        ready = preflight(compose_one(tiny("data.batch_size=auto")).config)
    else:
        ready = ready_with(tiny, "data.batch_size=auto", *dist.split())
    with pytest.raises(ConfigError, match=r"data\.batch_size.*only where one launcher starts all"):
        settle_batch_size(ready)


def test_a_process_that_dies_is_named(tiny, monkeypatch):
    monkeypatch.setattr(batch_sizes, "_largest_fitting", _die)
    with pytest.raises(DeviceError, match="the process that tried batch sizes died"):
        settle_batch_size(ready_with(tiny, "data.batch_size=auto"))


def test_elsewhere_auto_is_refused_by_name(tiny):
    data = compose_one(tiny("data.batch_size=auto")).config.data
    with pytest.raises(ConfigError, match=r"data\.batch_size.*is found when a run begins"):
        _ = data.fixed_batch_size


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_size_that_fits_a_gpu_trains_there(tiny):
    config = compose_one(tiny("data.batch_size=auto", "data.num_train=4000", "dist.procs_per_node=1")).config
    assert settle_batch_size(preflight(config)).config.data.batch_size == 128


class _Pace:
    def __init__(self, peak_bytes: int) -> None:
        self.peak_bytes, self.static_bytes, self.images_per_second = peak_bytes, 0, 1.0


def _die(config) -> int:
    import os

    os._exit(9)
