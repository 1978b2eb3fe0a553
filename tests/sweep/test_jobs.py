"""SLURM's jobs of a sweep, without SLURM; tests/cluster asks a real one."""

from __future__ import annotations

import json

import pytest

from runner.errors import LaunchError
from runner.sweep.jobs import JOB_FILE, adopt, queued


def test_a_job_that_was_submitted_just_before_a_kill_is_taken_up(folder, add_trial):
    submitted, waiting = add_trial({"seed": "1"}, [], None), add_trial({"seed": "2"}, [], None)
    (folder.run_dir(submitted) / JOB_FILE).parent.mkdir()
    (folder.run_dir(submitted) / JOB_FILE).write_text(json.dumps({"job_id": "12"}))
    adopt(folder, [submitted, waiting])
    assert [trial.job_id for trial in folder.trials()] == ["12", None]


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
