"""Sweep folders as others may have made them: refused by name, and never what decides what is trained."""

from __future__ import annotations

import json
import os

import pytest

from runner.base.errors import CheckpointError, OutputError, TrialsFailedError
from runner.cli.commands.report import run as report
from runner.config.hydra_compose import ComposedJob
from runner.tools.sweep.leaderboard import refresh
from runner.tools.sweep.search.storage import open_storage
from runner.tools.sweep.sweep_folder import epochs_of
from tests.composed import compose_jobs

SWEEPS = {
    "list": [],
    "metrics": {"metrics": ["__class__"]},
    "no metric": {"metrics": []},
    "directions": {"directions": []},
    "argv": {"argv": "-m"},
    "cwd": {"cwd": None},
    "start": {"start": 3},
}
TRIALS = {
    "list": [],
    "number": {"number": 7},
    "negative": {"number": -1},
    "values": {"values": {"a": 1}},
    "overrides": {"overrides": "x"},
    "config": {"config": []},
    "surplus": {"more": 1},
    "same": {"same_as": 99},
    "failures": {"failures": ["x"]},
    "job": {"job_id": "1; touch /tmp/x"},
}


def change(file, values):
    file.write_text(json.dumps({**json.loads(file.read_text()), **values} if isinstance(values, dict) else values))


@pytest.mark.parametrize("values", SWEEPS.values(), ids=SWEEPS)
def test_a_record_of_another_form_is_damaged(folder, values):
    change(folder.path / "sweep.json", values)
    with pytest.raises(OutputError, match=r"sweep\.json is damaged"):
        report([f"run={folder.path}"])


@pytest.mark.parametrize("values", TRIALS.values(), ids=TRIALS)
def test_a_trial_of_another_form_is_damaged(folder, add_trial, values):
    add_trial({"optimizer.lr": "0.1"}, [0.5])
    change(folder.path / "trials" / "0.json", values)
    with pytest.raises(OutputError, match=r"trials/0\.json is damaged"):
        report([f"run={folder.path}"])


def test_a_damaged_config_of_the_best_trial_is_named(folder, add_trial):
    add_trial({"optimizer.lr": "0.1"}, [0.5])
    change(folder.path / "trials" / "0.json", {"config": {"model": 3}})
    with pytest.raises(OutputError, match="the record of trial 0 is damaged: its config"):
        report([f"run={folder.path}"])


def test_metrics_and_record_of_a_trial_are_validated(folder, add_trial):
    trial = add_trial({"optimizer.lr": "0.1"}, [0.5])
    (folder.run_dir(trial) / "metrics.jsonl").write_text("[1]\n")
    with pytest.raises(OutputError, match=r"metrics\.jsonl is damaged: line 1"):
        epochs_of(folder.run_dir(trial))
    (folder.run_dir(trial) / "metrics.jsonl").write_text("")
    (folder.run_dir(trial) / "run.json").write_text('{"status": "failed", "attempts": 1, "error": "x"}')
    with pytest.raises(OutputError, match=r"run\.json is damaged: error"):
        report([f"run={folder.path}"])


@pytest.mark.parametrize("name", ["trials", "0", "leaderboard.csv", "best.yaml", "logs", ".leaderboard.lock"])
def test_nothing_is_read_or_written_behind_a_link(folder, add_trial, tmp_path, name):
    add_trial({"optimizer.lr": "0.1"}, [0.5])
    place = folder.path / name
    if place.exists():
        place.rename(tmp_path / "elsewhere")
    (folder.path / name).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(CheckpointError, match=rf"{name} leads to"):
        report([f"run={folder.path}"])
    if name != "logs":  # which a job that ends does not touch
        with pytest.raises(CheckpointError, match="leads to"):
            refresh(folder)
    assert not (folder.path / "report.html").exists()


@pytest.mark.parametrize(
    "line",
    [
        "{}",
        '{"op_code": 99, "worker_id": "x"}',
        '{"op_code": 0, "worker_id": "x"}',
        '{"op_code": 0, "worker_id": "x", "study_name": "sweep", "directions": [77]}',
        '{"op_code": 4, "worker_id": "x", "study_id": "__class__"}',
        "[" * 50_000,
    ],
)
def test_a_journal_of_another_form_is_damaged(folder, base_config, line):
    from runner.config.schema.checks.validation import validate_config

    pytest.importorskip("optuna")
    study = '{"op_code": 0, "worker_id": "x", "study_name": "s", "directions": [1]}\n'
    trial = '{"op_code": 4, "worker_id": "x", "study_id": 0}\n'
    folder.journal.write_text(f"{study}{line}\n{trial}")
    with pytest.raises(OutputError, match=r"journal\.log is damaged.*move it away and resume"):
        open_storage(validate_config(base_config).sweep, folder)


def test_an_endless_journal_is_not_read(folder, base_config):
    from runner.config.schema.checks.validation import validate_config

    pytest.importorskip("optuna")
    folder.journal.touch()
    os.truncate(folder.journal, 1 << 40)
    with pytest.raises(OutputError, match=r"journal\.log is damaged: it is larger than"):
        open_storage(validate_config(base_config).sweep, folder)


def test_the_typed_config_is_trained_not_that_of_a_record(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    typed = ["-m", "hydra/launcher=basic", "data=synthetic", "sweep.dir=mine", "optimizer.lr=0.1,0.2"]

    def play(job: ComposedJob) -> float:
        raise RuntimeError("it trains nothing here")

    with pytest.raises(TrialsFailedError, match="it trains nothing"):
        compose_jobs(typed, play)
    trial = tmp_path / "mine" / "trials" / "1.json"
    before = json.loads(trial.read_text())
    changed = json.loads(trial.read_text())
    changed["config"]["dist"]["launcher"] = "submitted"
    changed["config"]["dist"]["slurm"]["setup"] = ["touch /tmp/owned"]
    changed["config"]["sweep"]["storage"] = "sqlite:////tmp/owned.db"
    trial.write_text(json.dumps(changed))
    with pytest.raises(TrialsFailedError, match="it trains nothing"):
        compose_jobs(typed, play)
    assert json.loads(trial.read_text())["config"] == before["config"]
