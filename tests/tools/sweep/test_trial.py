"""Sweeps of real processes: kills, failures, and several processes per trial that end together."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from runner.library import load_config
from runner.tools.sweep.search.study import Search
from runner.tools.sweep.sweep_folder import SweepFolder, Trial

ROOT = Path(__file__).resolve().parents[3]
SWEEP = ("sweep.dir=mine", "sweep.parallel=1")


def start(tmp_path: Path, *argv: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "runner", *argv],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,  # a process group of its own, as a shell gives it
    )


def wait_for(process: subprocess.Popen[str], word: str) -> str:
    """Read what it says until this word comes."""
    assert process.stdout is not None
    told = ""
    for line in process.stdout:
        told += line
        if word in line:
            return told
    raise AssertionError(f"it ended with {process.wait()} before it said {word!r}: {told}")


def wait_until(condition) -> None:
    end = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < end, "it did not come about"
        time.sleep(0.05)


def trial_processes(folder: Path) -> list[int]:
    """The processes of the trials of a sweep, by their command lines."""
    found = []
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = file.read_bytes().split(b"\0")
        except OSError:
            continue  # it ended meanwhile
        if b"runner.tools.sweep.trial" in words and str(folder).encode() in words:
            found.append(int(file.parent.name))
    return found


def run_json(folder: Path, number: int) -> dict:
    return json.loads((folder / str(number) / "run.json").read_text())


@pytest.mark.skipif(sys.platform != "linux", reason="looks for processes in /proc")
def test_a_killed_sweep_leaves_no_process_and_is_resumed(tmp_path, run_cli, tiny):
    grid = ("optimizer.lr=0.01,0.02,1e20", "trainer.print_every=1", "trainer.epochs=2")
    folder = tmp_path / "mine"
    sweep = start(tmp_path, "-m", *tiny(*SWEEP, *grid))
    wait_for(sweep, "trial 1  starts")
    wait_until((folder / "1" / "run.json").is_file)
    sweep.kill()
    sweep.communicate()
    wait_until(lambda: trial_processes(folder) == [])
    finished = run_json(folder, 0)
    assert finished["status"] == "completed"
    again = run_cli("resume", f"run={folder}")
    assert again.returncode == 1
    assert "TrialsFailedError: 1 of 3 trials failed" in again.stderr and "2: NonFiniteLossError" in again.stderr
    assert run_json(folder, 0) == finished
    assert (run_json(folder, 1)["status"], run_json(folder, 1)["attempts"]) == ("completed", 2)
    rows = json.loads((folder / "leaderboard.json").read_text())
    assert sorted(row["folder"] for row in rows) == ["0", "1", "2"]
    assert {row["folder"]: row["status"] for row in rows} == {"0": "completed", "1": "completed", "2": "failed"}
    assert _hparams(folder) == {"0/tensorboard", "1/tensorboard"}


def _hparams(folder: Path) -> set[str]:
    """The runs that TensorBoard's HPARAMS tab would list for the folder of the sweep."""
    from tensorboard.backend.event_processing.plugin_event_multiplexer import EventMultiplexer

    multiplexer = EventMultiplexer().AddRunsFromDirectory(str(folder))
    multiplexer.Reload()
    return set(multiplexer.PluginRunToTagToContent("hparams"))


def test_a_stopped_sweep_saves_its_trials_and_names_the_command_to_resume(tmp_path, tiny):
    """By Ctrl-C, which a terminal sends to all of its foreground group; a scheduler's SIGTERM does the same."""
    endless = ("optimizer.lr=0.01,0.02", "trainer.epochs=100000", "trainer.patience=null", "trainer.print_every=1")
    sweep = start(tmp_path, "-m", *tiny(*SWEEP, *endless))
    wait_for(sweep, "trial 0  starts")
    wait_until((tmp_path / "mine" / "0" / "metrics.jsonl").is_file)
    os.killpg(sweep.pid, signal.SIGINT)
    told, _ = sweep.communicate(timeout=120)
    assert sweep.returncode == 75, told
    assert "StoppedOnRequest: the sweep was stopped on SIGINT; resume it with python -m runner resume" in told
    assert run_json(tmp_path / "mine", 0)["status"] == "stopped"
    assert not (tmp_path / "mine" / "1").exists()


@pytest.mark.long
def test_a_policy_ends_all_processes_of_a_trial_together(tmp_path, tiny):
    """Against a trial that was far better, which is only on record."""
    config = load_config(
        tiny(
            "trainer.epochs=3",
            "dist.procs_per_node=2",
            "data.num_train=48",
            "sweep.pruner=bandit",
            "sweep.pruning.slack_amount=0.001",
            "sweep.pruning.delay_evaluation=2",
            "sweep.metric=train_images_per_second",
        )
    )
    folder = SweepFolder(tmp_path / "mine")
    folder.path.mkdir()
    folder.begin({"start": "", "argv": [], "cwd": "", "metrics": [], "directions": []})
    search = Search(config.sweep, folder, [], None)
    known = search.enter(0)
    study_id = search.storage.get_study_id_from_name(search.study.study_name)
    trial_id = search.storage.get_trial_id_from_study_id_trial_number(study_id, known)
    for epoch in (1, 2):
        search.storage.set_trial_intermediate_value(trial_id, epoch, 1e9)
    values = config.model_dump(mode="json")
    folder.save(Trial(number=0, identity="", values={}, overrides=[], config=values, study_number=search.enter(1)))
    (folder.path / "0" / "logs").mkdir(parents=True)
    done = subprocess.run(
        [sys.executable, "-m", "runner.tools.sweep.trial", str(folder.path), "0", str(os.getpid())],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert run_json(folder.path, 0)["status"] == "pruned"
    assert run_json(folder.path, 0)["world_size"] == 2
    rows = (folder.path / "0" / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(row)["epoch"] for row in rows] == [1, 2]
    assert not (folder.path / "0" / "model").exists()
    assert "pruned      after epoch 2: bandit: train_images_per_second" in done.stdout
