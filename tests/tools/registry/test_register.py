from __future__ import annotations

import json
import shutil

import pytest

from runner.base.errors import CheckpointError, ConfigError, RegistryError
from runner.cli.commands.models import register
from runner.tools.registry.folder_registry import FolderRegistry
from tests.made_runs import make_run


def test_the_model_of_a_run_becomes_a_version_with_its_lineage_page_and_card(trained, tmp_path, capsys):
    registry = FolderRegistry(tmp_path / "models")
    call = [f"run={trained}", "name=birds", "alias=champion", f"registry.uri={registry.place}"]
    assert register.run(call) == 0
    assert "registered  birds/1" in capsys.readouterr().out
    record, folder = registry.read("birds", 1), tmp_path / "models" / "birds" / "1"
    of_run = json.loads((trained / "run.json").read_text())
    assert registry.aliases("birds") == {"champion": 1}
    assert record.lineage.run == str(trained)
    assert record.lineage.data_fingerprint == of_run["data"]["fingerprint"]
    assert record.lineage.git_commit == of_run["git"]["commit"]
    assert set(record.metrics) == {"val", "test"}
    assert (folder / "model" / "model.safetensors").read_bytes() == (trained / "model/model.safetensors").read_bytes()
    assert set(record.files) == {
        "accuracy.svg",
        "index.html",
        "loss.svg",
        "model/model.json",
        "model/model.safetensors",
    }
    assert (folder / "loss.svg").read_bytes().startswith(b"<?xml")
    assert "<script>" not in (folder / "index.html").read_text(), "a class has this name"
    assert r"\<script\>, =cmd(), 🐜 ant" in (folder / "README.md").read_text()


@pytest.mark.parametrize("status", ["stopped", "failed", "pruned", "running"])
def test_only_a_completed_run_is_registered(tmp_path, status):
    run = make_run(tmp_path / "run", status=status)
    with pytest.raises(RegistryError, match="only completed runs are registered"):
        register.run([f"run={run}", "name=birds", f"registry.uri={tmp_path / 'models'}"])
    assert not (tmp_path / "models").exists()


def test_a_damaged_package_is_not_registered(trained, tmp_path):
    run = shutil.copytree(trained, tmp_path / "run", ignore=shutil.ignore_patterns("checkpoints", "tensorboard"))
    (run / "model" / "model.safetensors").write_bytes(b"x")
    with pytest.raises(CheckpointError, match="damaged"):
        register.run([f"run={run}", "name=birds", f"registry.uri={tmp_path / 'models'}"])
    assert not (tmp_path / "models").exists()


@pytest.mark.parametrize(
    "change", ["name=../x", "name=.x", "name=a/b", "name=", "alias=latest", "alias=v1", "alias=../x"]
)
def test_a_name_that_is_a_path_is_refused(trained, tmp_path, change):
    with pytest.raises(ConfigError, match=change.partition("=")[0]):
        register.run([f"run={trained}", "name=birds", f"registry.uri={tmp_path / 'models'}", change])
    assert not (tmp_path / "models").exists()
