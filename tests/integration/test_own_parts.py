"""The example package of users' own parts, installed by pip, in what is checked, shown, trained and evaluated."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.conftest import ROOT

EXAMPLE = ROOT / "examples" / "own_parts"
SMALL = ("--config-dir", str(EXAMPLE / "conf"), "experiment=salted", "trainer.epochs=1", "trainer.max_steps=3")


@pytest.fixture(scope="module")
def installed(tmp_path_factory) -> str:
    """PYTHONPATH with the package."""
    place = tmp_path_factory.mktemp("site")
    options = ["--no-deps", "--no-build-isolation", "--no-index", "--quiet", "--disable-pip-version-check"]
    source = tmp_path_factory.mktemp("source") / "own_parts"
    source.mkdir()
    for name in ("pyproject.toml", "own_parts.py"):  # a copy, into which the build may write
        (source / name).write_text((EXAMPLE / name).read_text())
    subprocess.run([sys.executable, "-m", "pip", "install", *options, "--target", place, source], check=True)
    return f"{ROOT}:{place}"


def test_the_example_is_short():
    files = [path for path in EXAMPLE.rglob("*.*") if path.suffix in (".py", ".toml", ".yaml")]
    assert sum(len(path.read_text().splitlines()) for path in files) < 60


@pytest.mark.long
def test_it_is_trained_evaluated_and_resumed(installed, run_cli, tmp_path):
    trained = run_cli(*SMALL, cwd=tmp_path, PYTHONPATH=installed)
    assert trained.returncode == 0, trained.stderr
    (run,) = (path.parent for path in tmp_path.glob("outputs/*/*/run.json"))
    saved = yaml.safe_load((run / "config.yaml").read_text())
    assert (saved["trainer"]["loss"], saved["trainer"]["loss_arguments"]) == ("focal", {"gamma": 2})
    evaluated = run_cli("evaluate", f"run={run}", cwd=tmp_path, PYTHONPATH=installed)
    assert evaluated.returncode == 0, evaluated.stderr
    resumed = run_cli("resume", f"run={run}", "trainer.max_steps=4", cwd=tmp_path, PYTHONPATH=installed)
    assert resumed.returncode == 0, resumed.stderr
    without = run_cli("resume", f"run={run}", "trainer.max_steps=5", cwd=tmp_path)
    assert without.returncode == 2
    assert "no installed package offers it under the entry point group runner.losses" in without.stderr


@pytest.mark.parametrize(
    ("override", "told"),
    [
        ("trainer.loss=focl", "trainer.loss = 'focl': no installed package offers it under the entry point group"),
        ("trainer.loss=focl", "did you mean focal?"),
        (
            "trainer.loss_arguments={gama: 2}",
            "trainer.loss_arguments.gama: no such setting of focal; did you mean gamma?",
        ),
        ("~trainer.loss_arguments.gamma", "trainer.loss_arguments.gamma: this key is missing"),
        ("trainer.loss_arguments.gamma=-1", "trainer.loss_arguments.gamma = -1: must be at least 0"),
        ("trainer.loss_arguments.gamma=x", "trainer.loss_arguments.gamma = 'x': must be a number"),
        (
            "data.train_transforms=[{name: custom, part: salt, arguments: {share: 2}}]",
            "data.train_transforms.0.arguments.share = 2: must be at most 1",
        ),
        ("data.train_transforms=[{name: custom}]", "data.train_transforms.0.part"),
        ("trainer.loss=cross_entropy", 'trainer.loss_arguments = {"gamma": 2}: cross_entropy has none'),
    ],
)
def test_a_mistake_in_it_is_told_before_anything_starts(installed, run_cli, tmp_path, override, told):
    refused = run_cli("validate", *SMALL, override, cwd=tmp_path, PYTHONPATH=installed)
    assert refused.returncode == 2
    assert told in refused.stderr


def test_help_and_the_json_schema_have_its_settings(installed, run_cli, tmp_path):
    shown = run_cli("--help", "transforms", cwd=tmp_path, PYTHONPATH=installed).stdout
    assert "part: salt" in shown
    assert "Probability that a pixel becomes white. [number ≥ 0 and ≤ 1]" in " ".join(shown.split())
    shown = run_cli("--help", "trainer", cwd=tmp_path, PYTHONPATH=installed).stdout
    assert "loss: focal" in shown
    assert "gamma" in shown.rpartition("loss: focal")[2]
    code = "import json, runner.config.reference as r; print(json.dumps(r.experiment_schema()))"
    command = [sys.executable, "-c", code]
    written = subprocess.run(command, env={"PYTHONPATH": installed}, capture_output=True, text=True, check=True).stdout
    schema = json.loads(written)
    parts = [entry["properties"].get("part") for entry in schema["definitions"]["transform"]["oneOf"]]
    assert {"const": "salt"} in parts
    trainer = schema["properties"]["trainer"]["properties"]
    assert trainer["loss"]["anyOf"][0] == {"enum": ["cross_entropy", "binary_cross_entropy", "focal"]}
    assert trainer["loss_arguments"]["anyOf"][1]["required"] == ["gamma"]


def test_without_packages_nothing_is_said_of_them(run_cli, tmp_path):
    assert "Of installed packages" not in run_cli("--help", "all", cwd=Path(tmp_path)).stdout
