"""The processes of a sweep: shares of the machine, and SLURM's jobs without SLURM (tests/cluster asks a real one)."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from runner.base.errors import LaunchError
from runner.library import load_config
from runner.tools.sweep.pool import JOB_FILE, queued_jobs, record_submitted_jobs, slots_for


def slots(*overrides: str, trials: int = 100, gpus: int = 0, cores: int = 8, **environ: str) -> list[dict[str, str]]:
    config = load_config(["data=synthetic", *overrides])
    found = slots_for(config, trials, environ=environ, num_gpus=gpus, num_cores=cores)
    return [dict(slot.environment) for slot in found]


def test_cores_are_divided():
    found = slots("sweep.parallel=4")
    assert found == [{"LOKY_MAX_CPU_COUNT": "2", "OMP_NUM_THREADS": "2"}] * 4
    assert slots("sweep.parallel=2", "dist.procs_per_node=2")[0]["OMP_NUM_THREADS"] == "2"


@pytest.mark.parametrize(
    ("overrides", "environ", "count"),
    [
        ((), {}, 8),
        (("dist.procs_per_node=2",), {}, 4),
        ((), {"OMP_NUM_THREADS": "4"}, 2),
        (("dist.procs_per_node=9",), {}, 1),
    ],
)
def test_auto_takes_as_many_as_there_are_cores_for(overrides, environ, count):
    found = slots(*overrides, **environ)
    assert len(found) == count
    assert len(slots(*overrides, trials=1, **environ)) == 1


def test_omp_num_threads_of_the_user_is_kept():
    assert "OMP_NUM_THREADS" not in slots("sweep.parallel=2", OMP_NUM_THREADS="3")[0]


def test_a_lone_trial_has_the_whole_machine():
    assert slots("sweep.parallel=1") == [{"LOKY_MAX_CPU_COUNT": "8"}]


def test_gpus_are_divided():
    assert [slot["CUDA_VISIBLE_DEVICES"] for slot in slots(gpus=4)] == ["0", "1", "2", "3"]
    assert [slot["CUDA_VISIBLE_DEVICES"] for slot in slots("dist.procs_per_node=2", gpus=4)] == ["0,1", "2,3"]
    assert [slot["CUDA_VISIBLE_DEVICES"] for slot in slots("sweep.parallel=2", gpus=4)] == ["0,1", "2,3"]
    assert [slot["CUDA_VISIBLE_DEVICES"] for slot in slots(gpus=2, CUDA_VISIBLE_DEVICES="3,GPU-ab")] == ["3", "GPU-ab"]


def test_more_trials_than_gpus_are_refused():
    with pytest.raises(LaunchError, match=r"need 6 GPUs, but there are 4; set sweep\.parallel=2"):
        slots("sweep.parallel=3", "dist.procs_per_node=2", gpus=4)


def test_no_more_slots_than_trials_so_that_each_gets_more():
    assert slots("sweep.parallel=8", trials=2) == [{"LOKY_MAX_CPU_COUNT": "4", "OMP_NUM_THREADS": "4"}] * 2
    assert len(slots("sweep.parallel=8", trials=2, gpus=2)) == 2


def test_more_processes_than_cores_are_warned_of(caplog):
    with caplog.at_level("WARNING", logger="runner"):
        assert len(slots("sweep.parallel=3", "dist.procs_per_node=2", cores=4)) == 3
    assert "3 trials of 2 processes at once share 4 cores" in caplog.text


@pytest.mark.parametrize(("overrides", "count"), [((), 4), (("sweep.parallel=9",), 9), (("sweep.parallel=1",), 1)])
def test_a_login_node_does_not_submit_all_trials_at_once(overrides, count):
    assert slots("dist.launcher=submitted", *overrides) == [{}] * count
    assert slots("dist.launcher=submitted", *overrides, trials=1) == [{}]


@pytest.mark.parametrize(
    "left",
    [
        {JOB_FILE: json.dumps({"job_id": "12"})},
        {Path("logs", "9_submitted.pkl"): "", Path("logs", "12_submitted.pkl"): ""},
    ],
)
def test_a_job_that_was_submitted_just_before_a_kill_is_recorded(left, folder, add_trial):
    submitted, waiting = add_trial({"seed": "1"}, [], None), add_trial({"seed": "2"}, [], None)
    (folder.run_dir(submitted) / "logs").mkdir()
    for name, content in left.items():
        (folder.run_dir(submitted) / name).write_text(content)
    record_submitted_jobs(folder, [submitted, waiting])
    assert [trial.job_id for trial in folder.trials()] == ["12", None]


def test_of_several_jobs_of_a_trial_the_newest_counts(folder, add_trial):
    trial = add_trial({"seed": "1"}, [], None, job_id="9")
    (folder.run_dir(trial) / "logs").mkdir()
    for job in ("9", "12"):
        (folder.run_dir(trial) / "logs" / f"{job}_submitted.pkl").touch()
    record_submitted_jobs(folder, [trial])
    assert [trial.job_id for trial in folder.trials()] == ["12"]


def test_only_jobs_of_the_sweep_that_the_queue_still_has(tmp_path, monkeypatch):
    squeue = tmp_path / "squeue"
    squeue.write_text("#!/bin/sh\nprintf '12\\n13\\n'\n")
    squeue.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    assert queued_jobs({"12", "14"}) == {"12"}
    squeue.write_text("#!/bin/sh\necho no controller >&2\nexit 1\n")
    with pytest.raises(LaunchError, match="no controller; resume the sweep on a login node"):
        queued_jobs({"12"})
    assert queued_jobs(set()) == set()
