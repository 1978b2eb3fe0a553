"""What is made of the figures of a trial; the trial itself is tested with the command."""

from __future__ import annotations

import dataclasses
import os
import signal
import subprocess
from types import SimpleNamespace

import pytest
import torch

from runner import load_config
from runner.base.errors import DeviceError, InvalidDatasetError, StoppedOnRequest
from runner.config.schema.calls.of_experiments import DoctorRules
from runner.dist.device import Precision
from runner.launch.plan import LaunchPlan
from runner.launch.preflight import preflight
from runner.tools.doctor import measurements
from runner.tools.doctor import short_training as trial
from runner.tools.doctor.short_training import Bench, Pace
from runner.tools.doctor.system import Load

RULES = DoctorRules(measure=True, seconds=1.0, compile=False)
GIB = 2**30


def pace(**changes) -> Pace:
    usual = Pace(
        num_steps=5,
        step_seconds=0.5,
        data_wait_seconds=0.0,
        images_per_second=16.0,
        evaluation_images_per_second=12.0,
        first_steps_seconds=3.0,
        peak_bytes=10 * GIB,
        static_bytes=2 * GIB,
        checkpoint_bytes=100,
        model_bytes=10,
    )
    return dataclasses.replace(usual, **changes)


@pytest.fixture
def bench(tiny) -> Bench:
    ready = preflight(load_config(tiny()))
    precision = Precision(name="fp32", reason="a test")
    return Bench(
        config=ready.config, splits=ready.splits, device=torch.device("cpu"), precision=precision, num_processes=1
    )


def plan(world_size: int = 1) -> LaunchPlan:
    return LaunchPlan(
        mode="inline", reason="", num_nodes=1, procs_per_node=world_size, world_size=world_size, place=None
    )


def load(workers: int = 0) -> Load:
    return Load(num_processes=1, num_threads=1, num_workers=workers)


def test_activations_grow_with_the_batch_and_weights_do_not():
    # 8 GiB of activations for 32 images; 0.9 × 40 − 2 = 34 GiB for 136.
    assert measurements.largest_batch(pace(), 32, 40 * GIB) == 136
    assert measurements.largest_batch(pace(), 32, 1 * GIB) == 0


@pytest.mark.parametrize(("world_size", "num_steps", "evaluation_seconds"), [(1, 10, 4.0), (2, 6, 2.0)])
def test_the_whole_run_is_epochs_of_steps_and_evaluations(bench, world_size, num_steps, evaluation_seconds):
    finding = measurements._whole_run(bench, pace(), plan(world_size))
    assert finding.values == {
        "training_seconds": num_steps * 0.5,
        "evaluation_seconds": evaluation_seconds,
        "num_steps": num_steps,
    }
    assert ("exchange of gradients is not measured" in finding.found) is (world_size > 1)


@pytest.mark.parametrize(
    ("waiting", "loader", "cores", "bottleneck", "advice"),
    [
        (0.0, 100.0, 8, "compute", ()),
        (0.4, 5.0, 8, "data", ("cores are free for more loader processes: data.workers=4",)),
        (0.4, 5.0, 2, "data", ("all cores are at work",)),
    ],
)
def test_the_slower_side_is_named(bench, monkeypatch, waiting, loader, cores, bottleneck, advice):
    monkeypatch.setattr(measurements, "cpu_count", lambda: cores)
    paces = measurements.Paces(
        whole=pace(data_wait_seconds=waiting), device=pace(images_per_second=20.0), loader_images_per_second=loader
    )
    finding = measurements._pace(bench, paces, load(1))
    assert finding.values["bottleneck"] == bottleneck
    assert [told[: len(start)] for told, start in zip(finding.advice, advice, strict=True)] == list(advice)


@pytest.mark.parametrize(("num_workers", "wanted"), [(0, 20), (4, 10)])
def test_without_loader_processes_threads_have_loaded(monkeypatch, num_workers, wanted):
    """Of 16 threads at most 8 decode: so many loader processes would be as fast."""
    monkeypatch.setattr(measurements, "cpu_count", lambda: 64)
    monkeypatch.setattr(measurements, "choose_num_threads", lambda _: 16)
    assert measurements._advice_for_data(load(num_workers), 1600.0, 4000.0).endswith(f"data.workers={wanted}")


def test_a_batch_that_is_too_large_is_halved_until_it_fits(bench, monkeypatch):
    tried = []

    def train_briefly(bench, num_steps):
        tried.append(bench.config.data.batch_size)
        if bench.config.data.batch_size > 3:
            raise torch.OutOfMemoryError("no memory")
        return pace()

    monkeypatch.setattr(measurements, "train_briefly", train_briefly)
    (finding,) = measurements.measure(bench, plan(), load(), RULES)
    assert tried == [8, 4, 2]
    assert isinstance(finding.error, DeviceError)
    assert "data.batch_size=2 fits; with trainer.accumulate_steps=4" in str(finding.error)


@pytest.mark.parametrize(
    ("is_on", "eager", "compiled", "pays", "advice"),
    [
        (False, 1.0, 0.5, True, ("trainer.compile=true",)),
        (False, 1.0, 1.1, False, ()),
        (True, 1.0, 1.1, False, ("trainer.compile=false",)),
        (True, 1.0, 0.5, True, ()),
    ],
)
def test_compiling_pays_where_it_saves_more_than_it_costs(bench, monkeypatch, is_on, eager, compiled, pays, advice):
    trainer = bench.config.trainer.model_copy(update={"compile": is_on, "epochs": 1000})
    bench = dataclasses.replace(bench, config=bench.config.model_copy(update={"trainer": trainer}))

    def at(step_seconds: float) -> Pace:
        return pace(step_seconds=step_seconds, images_per_second=8 / step_seconds, first_steps_seconds=30.0)

    monkeypatch.setattr(measurements, "without_data", lambda bench: bench)
    monkeypatch.setattr(
        measurements, "train_briefly", lambda bench, num_steps: at(compiled if bench.config.trainer.compile else eager)
    )
    finding = measurements._try_compile(bench, at(compiled if is_on else eager), plan())
    assert (finding.values["pays"], finding.advice) == (pays, advice)


def test_an_error_of_the_data_is_told_by_its_name(bench, monkeypatch):
    def train_briefly(bench, num_steps):
        raise InvalidDatasetError("this image")

    monkeypatch.setattr(measurements, "train_briefly", train_briefly)
    (finding,) = measurements.measure(bench, plan(), load(), RULES)
    assert (finding.topic, str(finding.error)) == ("training", "this image")


def test_memory_that_is_not_there_is_warned_of(bench, monkeypatch):
    monkeypatch.setattr(measurements, "available_memory", lambda: 15 * GIB)
    assert measurements._memory(bench, pace(), load()).advice == ()
    two = Load(num_processes=2, num_threads=1, num_workers=0)
    assert "may need 21.5 GB" in measurements._memory(bench, pace(), two).advice[0]


def test_a_signal_ends_it_and_leaves_nothing_behind(bench, tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    before = set(tmp_path.iterdir())
    with pytest.raises(StoppedOnRequest, match=r"^stopped on SIGTERM; nothing was kept$"), trial._set_up(bench, 1):
        assert set(tmp_path.iterdir()) > before
        os.kill(os.getpid(), signal.SIGTERM)
    assert set(tmp_path.iterdir()) == before


def test_a_stop_is_no_finding(bench, monkeypatch):
    def train_briefly(bench, num_steps):
        raise StoppedOnRequest("stopped")

    monkeypatch.setattr(measurements, "train_briefly", train_briefly)
    with pytest.raises(StoppedOnRequest):
        measurements.measure(bench, plan(), load(), RULES)


@pytest.mark.gpu
def test_a_gpu_is_tried_and_the_batch_that_would_fit_is_said(tiny):
    from runner.tools.doctor.diagnose import diagnose

    report = diagnose(load_config(tiny("trainer.device=cuda", "trainer.precision=auto")), RULES)
    found = {finding.topic: finding for finding in report.findings}
    assert report.errors == ()
    assert found["memory"].values["largest_batch_size"] > 8
    assert 0 < found["memory"].values["peak_bytes"] < found["memory"].values["total_bytes"]
    assert {"cuda", "driver", "nccl"} <= set(found["versions"].values)


def test_a_cpu_without_bf16_is_told_that_it_is_emulated(monkeypatch):
    from runner.tools.doctor.hardware import check_precision

    for name in ("_is_amx_tile_supported", "_is_avx512_bf16_supported"):
        monkeypatch.setattr(torch.cpu, name, lambda: False)
    config = SimpleNamespace(precision="bf16", device="cpu")
    finding = check_precision(config, torch.device("cpu"))
    assert finding.values["support"]["bf16"] == "emulated"
    assert "trainer.precision=auto" in finding.advice[0]


def test_what_has_no_deterministic_form_is_named(bench, monkeypatch):
    def train_briefly(bench: Bench, num_steps: int) -> None:
        raise RuntimeError(
            "adaptive_avg_pool2d_backward_cuda does not have a deterministic implementation, but you set"
        )

    monkeypatch.setattr(measurements, "train_briefly", train_briefly)
    (finding,) = measurements.measure(bench, plan(), load(), RULES)
    assert "deterministic = true: adaptive_avg_pool2d_backward_cuda gives other bits" in str(finding.error)


def test_a_driver_that_does_not_answer_is_unknown(monkeypatch):
    from runner.tools.doctor import hardware

    def hang(command: list[str], **options: object) -> None:
        raise subprocess.TimeoutExpired(command, 10)

    monkeypatch.setattr(hardware.shutil, "which", lambda name: f"/usr/bin/{name}")
    monkeypatch.setattr(hardware.subprocess, "run", hang)
    assert hardware._driver_version() == "unknown"


@pytest.mark.parametrize(("side", "is_kept"), [(32, True), (4096, False)])
def test_a_trial_keeps_images_only_where_the_whole_run_does(bench, monkeypatch, side, is_kept):
    # 21 images of 4096 px take more than 256 MiB, the few of a trial less.
    data = bench.config.data.model_copy(update={"image_size": side, "eval_image_size": side})
    bench = dataclasses.replace(bench, config=bench.config.model_copy(update={"data": data}))
    assert len(bench.splits.val) * 4096**2 * 3 > 2**28 > 4096**2 * 3
    decided = []
    monkeypatch.setattr(trial, "assemble", lambda *parts, cache_policy, **more: decided.append(cache_policy))
    with trial._set_up(bench, num_steps=1):
        assert decided[0].evaluation is is_kept
