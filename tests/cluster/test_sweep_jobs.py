"""Sweeps whose trials are jobs of SLURM: the leaderboard is complete when the jobs are."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cluster.conftest import CPU_JOB, wait_for, why_not
from tests.conftest import ROOT

REASON = why_not("srun", "sbatch", "scontrol")
pytestmark = [pytest.mark.cluster, pytest.mark.skipif(REASON is not None, reason=REASON or "")]
RATES = "optimizer.lr=0.01,0.02"


def leaderboard(folder: Path) -> dict[str, str]:
    return {row["folder"]: row["status"] for row in json.loads((folder / "leaderboard.json").read_text())}


def attempts(folder: Path) -> dict[str, int]:
    return {file.parent.name: json.loads(file.read_text())["attempts"] for file in folder.glob("*/run.json")}


def test_the_jobs_complete_the_leaderboard_and_none_is_submitted_twice(start, tiny, tmp_path):
    folder = tmp_path / "mine"
    typed = ["-m", *tiny(*CPU_JOB, RATES, f"sweep.dir={folder}")]
    told = start((), typed).stdout
    assert told.count("submitted job") == 2
    completed = {"0": "completed", "1": "completed"}
    wait_for(f"both jobs; {leaderboard(folder)}", lambda: leaderboard(folder) == completed)
    # A moment later, by the same job.
    wait_for("the best trial's file", (folder / "best.yaml").is_file)
    rows = json.loads((folder / "leaderboard.json").read_text())
    assert sorted(row["rank"] for row in rows)[0] == 1
    again = start((), typed).stdout
    assert "submitted job" not in again and "2 completed" in again
    assert attempts(folder) == {"0": 1, "1": 1}


def test_jobs_that_a_killed_sweep_had_just_submitted_are_not_submitted_again(start, tiny, tmp_path):
    folder = tmp_path / "mine"
    typed = ["-m", *tiny(*CPU_JOB, "dist.slurm.extra.hold=true", RATES, f"sweep.dir={folder}")]
    assert start((), typed).stdout.count("submitted job") == 2
    jobs = [json.loads(file.read_text())["job_id"] for file in sorted(folder.glob("*/logs/trial.job.json"))]
    # As a kill between sbatch and our own note of the job leaves it.
    for number in range(2):
        (folder / str(number) / "logs" / "trial.job.json").unlink()
        trial_file = folder / "trials" / f"{number}.json"
        trial_file.write_text(json.dumps(json.loads(trial_file.read_text()) | {"job_id": None}))
    assert "submitted job" not in start((), typed).stdout
    assert [json.loads((folder / "trials" / f"{number}.json").read_text())["job_id"] for number in range(2)] == jobs
    subprocess.run(["scontrol", "release", *jobs], check=True, timeout=60)
    completed = {"0": "completed", "1": "completed"}
    wait_for(f"both jobs; {leaderboard(folder)}", lambda: leaderboard(folder) == completed)
    assert attempts(folder) == {"0": 1, "1": 1}


def test_hydras_submitit_launcher_waits_for_its_jobs(tiny, tmp_path):
    reason = "needs pip install 'hydra-submitit-launcher~=1.2' 'hydra-core~=1.3.8'"
    pytest.importorskip("hydra_plugins.hydra_submitit_launcher", reason=reason)
    folder = tmp_path / "mine"
    typed = tiny(RATES, f"sweep.dir={folder}", "hydra/launcher=submitit_slurm", "hydra.launcher.timeout_min=5")
    done = subprocess.run(
        [sys.executable, "-m", "runner", "-m", *typed],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])},
        capture_output=True,
        text=True,
        check=False,
        timeout=250,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert leaderboard(folder) == {"0": "completed", "1": "completed"}
