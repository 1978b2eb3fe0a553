"""Hydra's own sweeper and launchers, with real trainings: what its users have in their commands keeps working."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tests.conftest import ROOT


@pytest.fixture
def sweep(run_cli, tiny, tmp_path):
    """Carries out a sweep of two tiny trials in the folder `mine`; returns it, and what the command has said."""

    def run_sweep(*overrides: str, exit_code: int = 0) -> tuple[Path, str]:
        # The plugins may lie elsewhere on the path than where this interpreter looks by itself.
        paths = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
        typed = tiny(
            "trainer.epochs=1", "schedule.warmup_epochs=0", "sweep.dir=mine", "optimizer.lr=0.01,0.02", *overrides
        )
        done = run_cli("-m", *typed, PYTHONPATH=paths)
        assert done.returncode == exit_code, done.stdout + done.stderr
        return tmp_path / "mine", done.stdout + done.stderr

    return run_sweep


def statuses(folder: Path) -> dict[str, str]:
    return {file.parent.name: json.loads(file.read_text())["status"] for file in sorted(folder.glob("*/run.json"))}


def leaderboard(folder: Path) -> dict[str, str]:
    return {row["folder"]: row["status"] for row in json.loads((folder / "leaderboard.json").read_text())}


@pytest.mark.long
def test_the_submitit_launcher_trains_our_trials(sweep):
    reason = "needs pip install 'hydra-submitit-launcher~=1.2' 'hydra-core~=1.3.8'"
    pytest.importorskip("hydra_plugins.hydra_submitit_launcher", reason=reason)
    folder, _ = sweep("hydra/launcher=submitit_local")
    assert statuses(folder) == leaderboard(folder) == {"0": "completed", "1": "completed"}


@pytest.mark.long
def test_a_failing_trial_of_the_joblib_launcher_ends_no_other(sweep):
    reason = "needs pip install 'hydra-joblib-launcher~=1.2' 'hydra-core~=1.3.8'"
    pytest.importorskip("hydra_plugins.hydra_joblib_launcher", reason=reason)
    folder, told = sweep("hydra/launcher=joblib", "optimizer.lr=1e20,0.02", exit_code=1)
    assert statuses(folder) == leaderboard(folder) == {"0": "failed", "1": "completed"}
    assert "1 of 2 trials failed" in told and "0: NonFiniteLossError" in told


@pytest.mark.long
def test_hydras_own_sweeper_trains_by_our_processes(sweep):
    folder, _ = sweep("hydra/sweeper=basic")
    assert statuses(folder) == leaderboard(folder) == {"0": "completed", "1": "completed"}
    assert (folder / "multirun.yaml").is_file() and (folder / "0" / "logs" / "trial.log").is_file()
