"""SLURM's jobs of a sweep, without SLURM; tests/cluster asks a real one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from runner.base.errors import LaunchError
from runner.tools.sweep.pool import JOB_FILE, adopt, queued


@pytest.mark.parametrize(
    "left",
    [
        {JOB_FILE: json.dumps({"job_id": "12"})},
        {Path("logs", "9_submitted.pkl"): "", Path("logs", "12_submitted.pkl"): ""},
    ],
)
def test_a_job_that_was_submitted_just_before_a_kill_is_taken_up(left, folder, add_trial):
    submitted, waiting = add_trial({"seed": "1"}, [], None), add_trial({"seed": "2"}, [], None)
    (folder.run_dir(submitted) / "logs").mkdir()
    for name, content in left.items():
        (folder.run_dir(submitted) / name).write_text(content)
    adopt(folder, [submitted, waiting])
    assert [trial.job_id for trial in folder.trials()] == ["12", None]


def test_of_several_jobs_of_a_trial_the_newest_counts(folder, add_trial):
    trial = add_trial({"seed": "1"}, [], None, job_id="9")
    (folder.run_dir(trial) / "logs").mkdir()
    for job in ("9", "12"):
        (folder.run_dir(trial) / "logs" / f"{job}_submitted.pkl").touch()
    adopt(folder, [trial])
    assert [trial.job_id for trial in folder.trials()] == ["12"]


def test_only_jobs_of_the_sweep_that_the_queue_still_has(tmp_path, monkeypatch):
    squeue = tmp_path / "squeue"
    squeue.write_text("#!/bin/sh\nprintf '12\\n13\\n'\n")
    squeue.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    assert queued({"12", "14"}) == {"12"}
    squeue.write_text("#!/bin/sh\necho no controller >&2\nexit 1\n")
    with pytest.raises(LaunchError, match="no controller; go on from a login node"):
        queued({"12"})
    assert queued(set()) == set()
