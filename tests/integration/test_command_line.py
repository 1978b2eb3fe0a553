"""The command line as a user meets it: real processes, real files."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from runner.cli.front_door import COMMANDS
from runner.config.schema.checks.validation import known_keys
from tests.conftest import ROOT, SMALL_NET, TINY


def run_dirs(folder: Path) -> list[Path]:
    return sorted(path.parent for path in folder.rglob("run.json"))


def test_the_default_run_trains_on_digits(run_cli, tmp_path):
    done = run_cli("trainer.max_steps=3", "trainer.print_every=1", RUNNER_CACHE=str(tmp_path / "cache"))
    assert done.returncode == 0, done.stderr
    (run_dir,) = run_dirs(tmp_path / "outputs")
    assert str(run_dir) in done.stdout
    assert "epoch 1/5  step 3/90" in done.stdout
    assert "tensorboard --logdir" in done.stdout
    assert json.loads((run_dir / "classes.json").read_text()) == [str(digit) for digit in range(10)]
    config = (run_dir / "config.yaml").read_text()
    assert f"train: {tmp_path}/cache/digits-v1/train" in config


def test_a_refusal_is_one_message_and_leaves_nothing_behind(run_cli, tmp_path):
    done = run_cli("trainer.epchos=5", "model=resnet99", "optimizer.lr=-1")
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith("runner: ConfigError: 3 mistakes\n")
    assert "Traceback" not in done.stderr
    for text in ("did you mean trainer.epochs?", "did you mean resnet50?", "optimizer.lr = -1: must be greater than 0"):
        assert text in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_mistakes_in_the_data_and_the_output_folder_come_together(run_cli, tmp_path):
    done = run_cli("data=folder", f"data.root={tmp_path}/missing", "output_dir=/proc/outputs")
    assert done.returncode == 2
    assert done.stderr.startswith("runner: PreflightError: 2 mistakes")
    assert "OutputError: /proc/outputs" in done.stderr
    assert f"{tmp_path}/missing" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_validate_says_what_would_be_trained_and_writes_nothing(run_cli, tmp_path):
    done = run_cli("validate", *TINY)
    assert (done.returncode, done.stderr) == (0, "")
    assert "valid: resnet18 on synthetic, 40 training and 24 validation images, 4 classes" in done.stdout
    assert list(tmp_path.iterdir()) == []
    assert run_cli("validate", *TINY, "data.batch_size=41").returncode == 2


def test_an_experiment_of_ones_own_from_any_directory(run_cli, tmp_path):
    folder = tmp_path / "my" / "conf" / "experiment"
    folder.mkdir(parents=True)
    lines = ["# @package _global_", "defaults: [override /data: synthetic]", "data: {num_classes: 3, image_size: 32}"]
    (folder / "mine.yaml").write_text("\n".join(lines))
    done = run_cli("validate", "--config-dir", "my/conf", "experiment=mine", "data.num_train=30")
    assert done.returncode == 0, done.stderr
    assert "30 training" in done.stdout
    assert "3 classes" in done.stdout


@pytest.mark.long
def test_a_multirun_makes_a_folder_per_job(run_cli, tmp_path):
    done = run_cli("-m", *TINY, "trainer.max_steps=1", "model=resnet18,resnet34", "optimizer.lr=0.001,0.002")
    assert done.returncode == 0, done.stderr
    dirs = run_dirs(tmp_path / "outputs" / "sweeps")
    assert sorted(path.name for path in dirs) == ["0", "1", "2", "3"]
    assert len({path.parent for path in dirs}) == 1
    overrides = [json.loads((path / "run.json").read_text())["overrides"] for path in dirs]
    assert [item for item in overrides[3] if item.startswith(("model", "opt"))] == [
        "model=resnet34",
        "optimizer.lr=0.002",
    ]


def test_one_bad_job_does_not_end_a_multirun(run_cli, tmp_path):
    done = run_cli("-m", *TINY, *SMALL_NET, "trainer.max_steps=1", "data.batch_size=8,99", "sweep.dir=mine")
    assert done.returncode == 1
    assert "TrialsFailedError: 1 of 2 trials failed" in done.stderr
    assert "1: InvalidDatasetError" in done.stderr
    assert [path.name for path in run_dirs(tmp_path)] == ["0"]


def test_a_stop_on_request_saves_and_exits_with_75(tmp_path):
    command = [sys.executable, "-m", "runner", *TINY, *SMALL_NET, "trainer.epochs=100000", "trainer.print_every=1"]
    process = subprocess.Popen(
        [*command, "trainer.patience=null"],
        cwd=tmp_path,
        env={**__import__("os").environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    for line in process.stdout:
        if "step 3/5" in line:
            process.send_signal(signal.SIGTERM)
            break
    _, stderr = process.communicate(timeout=60)
    assert process.returncode == 75, stderr
    assert "stopped on SIGTERM" in stderr
    (run_dir,) = run_dirs(tmp_path)
    assert json.loads((run_dir / "run.json").read_text())["status"] == "stopped"
    last = (run_dir / "checkpoints" / "last").read_text().strip()
    assert (run_dir / "checkpoints" / last / "model.safetensors").is_file()


@pytest.mark.parametrize("argv", [["--help"], ["-h"], ["help"]])
def test_help_begins_with_a_page_of_one_screen(run_cli, argv):
    done = run_cli(*argv, COLUMNS="80")
    assert (done.returncode, done.stderr) == (0, "")
    for word in ("validate", "doctor", "model=resnet18", "digits", "--help all"):
        assert word in done.stdout
    lines = done.stdout.splitlines()
    assert len(lines) <= 40
    assert max(map(len, lines)) <= 80


def test_the_whole_help_names_every_command_and_key(run_cli):
    done = run_cli("help", "all")
    for word in (*COMMANDS, *known_keys({}), "resnet50", "--config-dir", "random_horizontal_flip"):
        assert word in done.stdout


@pytest.mark.parametrize(
    ("topic", "shown"),
    [
        ("model", "model.weights="),
        ("predict", "Usage: python -m runner predict"),
        ("dataset check", "Usage: python -m runner dataset check"),
        ("dataset", "dataset split"),
        ("trainer.epochs", "[whole number ≥ 1]"),
        ("seed", "seed=1"),
    ],
)
def test_each_group_command_and_key_has_a_page(run_cli, topic, shown):
    pages = [run_cli(*argv) for argv in (["--help", *topic.split()], [*topic.split(), "-h"], ["help", *topic.split()])]
    for done in pages:
        assert (done.returncode, done.stderr) == (0, "")
        assert shown in done.stdout
        assert done.stdout == pages[0].stdout
    assert len(pages[0].stdout.splitlines()) < 100


def test_an_unknown_page_is_refused_with_the_nearest_names(run_cli):
    done = run_cli("help", "modle")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("runner: UsageError: there is no help on 'modle'; did you mean model")


def test_a_shell_completes_pages(run_cli):
    for line, expected in (
        ("runner help mod", "model"),
        ("runner --help dataset i", "import"),
        ("runner help trainer.epo", "trainer.epochs"),
    ):
        done = run_cli("-sc", "query=bash", COMP_LINE=line)
        assert done.stdout.split()[: len(expected.split())] == expected.split(), done.stderr


def test_version(run_cli):
    assert run_cli("--version").stdout.startswith("runner ")


def test_hydras_own_view_of_the_config(run_cli):
    done = run_cli("--cfg", "job", "trainer.epochs=7")
    assert done.returncode == 0
    assert "epochs: 7" in done.stdout


def test_an_output_folder_below_the_home_folder_is_made_there(run_cli, tiny, tmp_path):
    (tmp_path / "home").mkdir()
    done = run_cli(*tiny("trainer.max_steps=1", "output_dir=~/zz"), HOME=str(tmp_path / "home"))
    assert done.returncode == 0, done.stderr
    assert list((tmp_path / "home" / "zz").glob("*/*/run.json"))
    assert not (tmp_path / "~").exists()
