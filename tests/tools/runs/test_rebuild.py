"""What rebuilds the environment of a run: exact versions, the code, and nothing but names and versions of others."""

from __future__ import annotations

import hashlib
import json

import pytest
from packaging.requirements import Requirement

from runner.base.errors import CheckpointError, ConfigError, OutputError
from runner.run.installed import installed_packages
from runner.run.snapshot import FILE_NAME, SourceFile, pack
from runner.tools.runs.rebuild import write_environment
from tests.made_runs import make_run

VERSIONS = {"python": "3.13.1", "torch": "2.15.0+cu132"}


@pytest.fixture
def run_dir(tmp_path):
    folder = make_run(tmp_path / "run", versions=VERSIONS, local_packages={"runner": "editable folder"})
    (folder / "environment.txt").write_text("numpy==2.4.6\nrunner==0.1.0\ntorch==2.15.0\n")
    return folder


def pins(folder):
    lines = (folder / "requirements.txt").read_text().splitlines()
    return {Requirement(line).name: str(Requirement(line).specifier) for line in lines if not line.startswith("#")}


def add_snapshot(run_dir, **files):
    archive = pack({name.replace("__", "."): SourceFile(text.encode()) for name, text in files.items()})
    (run_dir / FILE_NAME).write_bytes(archive)
    record = json.loads((run_dir / "run.json").read_text())
    record["snapshot"] = {"sha256": hashlib.sha256(archive).hexdigest(), "folder": "."}
    (run_dir / "run.json").write_text(json.dumps(record))


def test_what_is_installed_here_becomes_requirements(run_dir, tmp_path):
    (run_dir / "environment.txt").write_text(installed_packages())
    write_environment(run_dir, tmp_path / "out")
    installed = dict(line.split("==") for line in installed_packages().splitlines())
    del installed["runner"]
    assert pins(tmp_path / "out") == {name: f"=={version}" for name, version in installed.items()}


def test_the_code_comes_along_where_the_run_has_kept_it(run_dir, tmp_path):
    add_snapshot(run_dir, pyproject__toml='[project]\nname = "runner"\n', setup__cfg="")
    written = write_environment(run_dir, tmp_path / "out")
    assert (tmp_path / "out" / "source" / "pyproject.toml").is_file()
    assert pins(tmp_path / "out") == {"numpy": "==2.4.6", "torch": "==2.15.0"}
    dockerfile = (tmp_path / "out" / "Dockerfile").read_text()
    assert "ARG BASE=python:3.13.1-slim" in dockerfile
    assert "COPY source " in dockerfile
    container = json.loads((tmp_path / "out" / ".devcontainer" / "devcontainer.json").read_text())
    assert (tmp_path / "out" / ".devcontainer" / container["build"]["dockerfile"]).resolve().is_file()
    assert written.notes == ()
    text = (tmp_path / "out" / "requirements.txt").read_text()
    assert "2.15.0+cu132" in text
    assert "pip install --no-deps ./source" in text


def test_without_the_code_the_reader_is_told_how_to_get_it(run_dir, tmp_path):
    (run_dir / "source.patch").write_text("diff --git a/x b/x\n")
    record = json.loads((run_dir / "run.json").read_text())
    record["local_packages"] = {"runner": f"commit {'b' * 40}", "mine": "editable folder"}
    (run_dir / "run.json").write_text(json.dumps(record))
    with (run_dir / "environment.txt").open("a") as file:
        file.write("mine==1.0\n")
    written = write_environment(run_dir, tmp_path / "out", base="registry.example/python:3.13")
    text = (tmp_path / "out" / "requirements.txt").read_text()
    assert f"git checkout {'a' * 40}" in text
    assert f"# It was 0.1.0, commit {'b' * 40} of its repository." in text
    assert "# mine has to be installed by hand; it was 1.0, installed from a folder, editable." in text
    assert set(pins(tmp_path / "out")) == {"numpy", "torch"}
    assert len(written.notes) == 2
    assert "ARG BASE=registry.example/python:3.13\n" in (tmp_path / "out" / "Dockerfile").read_text()
    assert (tmp_path / "out" / "source.patch").read_text() == "diff --git a/x b/x\n"


@pytest.mark.parametrize(
    "line",
    [
        "--no-index",
        "x @ somewhere.example/x.whl",
        "-e .",
        "x==1 ; y",
        "x",
        "x==1\\",
        "",
        "../x==1",
    ],
)
def test_only_names_and_versions_are_taken_of_others(run_dir, tmp_path, line):
    (run_dir / "environment.txt").write_text(f"numpy==2.4.6\n{line}\n")
    with pytest.raises(CheckpointError, match=r"line 2 is .*, and not NAME==VERSION"):
        write_environment(run_dir, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_no_value_of_others_leaves_its_line(run_dir, tmp_path):
    record = json.loads((run_dir / "run.json").read_text())
    record |= {"git": {"commit": "x\nRUN evil"}, "local_packages": {"torch": "commit x\nevil"}}
    record["versions"] = {"python": "3.13\nRUN evil", "torch": "2\nevil==1"}
    (run_dir / "run.json").write_text(json.dumps(record))
    with pytest.raises(ConfigError, match="does not say which Python"):
        write_environment(run_dir, tmp_path / "out")
    write_environment(run_dir, tmp_path / "out", base="python:3.13")
    assert pins(tmp_path / "out") == {"numpy": "==2.4.6"}
    assert not any(line.startswith("RUN evil") for line in (tmp_path / "out" / "Dockerfile").read_text().splitlines())


def test_two_versions_of_one_package_are_named(run_dir, tmp_path):
    (run_dir / "environment.txt").write_text("a_b==1\nA-B==2\n")
    with pytest.raises(CheckpointError, match="two versions, 1 and 2"):
        write_environment(run_dir, tmp_path / "out")


def test_an_existing_output_is_refused(run_dir, tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine").touch()
    with pytest.raises(OutputError, match="already exists"):
        write_environment(run_dir, tmp_path / "out")
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["mine"]
    (tmp_path / "out" / "mine").unlink()
    write_environment(run_dir, tmp_path / "out")
    assert (tmp_path / "out" / "Dockerfile").is_file()
    assert not list(tmp_path.glob(".*"))
