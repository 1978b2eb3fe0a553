"""The command as a user calls it, and the project that it writes in a real git repository."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from runner.base.errors import ConfigError, UsageError
from runner.cli.commands import init
from tests.conftest import ROOT

BAD = "trainer:\n  epchos: 3\n"
GOOD = "# @package _global_\ntrainer:\n  epochs: 3\n"


def test_a_project_in_one_call(tmp_path, capsys):
    assert init.run([f"output={tmp_path / 'my ants'}"]) == 0
    told = capsys.readouterr().out
    assert "conf/experiment/first.yaml" in told
    assert f"cd '{tmp_path / 'my ants'}' && python -m runner experiment=first" in " ".join(told.split())


def test_nobody_is_sent_to_where_they_are(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert init.run(["output=."]) == 0
    assert "train it: python -m runner experiment=first" in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize(
    ("argv", "error", "told"),
    [
        ([], ConfigError, "output: needs a value"),
        (["output=x", "init.dta=photos"], ConfigError, "did you mean init.data"),
        (["output=x", "init.data=https://example.org/photos.zip"], ConfigError, "init.data = 'https"),
        (["output=s3://bucket/x"], ConfigError, "output = 's3"),
        (["output=x", "trainer.epochs=3"], ConfigError, "no such key"),
        (["x"], UsageError, "did you mean output=x"),
    ],
)
def test_a_wrong_call_is_refused(argv, error, told):
    with pytest.raises(error, match=told):
        init.run(argv)


@pytest.mark.long
def test_from_photos_to_a_training(tmp_path, write_image, run_cli):
    for label, seed in (("ants", 0), ("bees", 100)):
        for number in range(24):
            write_image(tmp_path / "photos" / label / f"{number}.png", seed + number, (40, 36))
    done = run_cli("init", "output=mine", "init.data=photos")
    assert done.returncode == 0, done.stderr
    text = (tmp_path / "mine" / "conf" / "experiment" / "first.yaml").read_text()
    assert "  # Images/s by batch size, measured on this machine: 3: " in " ".join(text.split("\n"))
    trained = run_cli(*("--config-dir=conf", "experiment=first", "trainer.max_steps=2"), cwd=tmp_path / "mine")
    assert trained.returncode == 0, trained.stderr
    assert len(list((tmp_path / "mine" / "outputs").glob("*/*/report.html"))) == 1


@pytest.mark.parametrize("number", [1, 4, 6])
@pytest.mark.parametrize("exists", [False, True])
def test_a_kill_leaves_no_half_file(tmp_path, number, exists):
    """Killed before one of its files is published, by a signal that no process can catch."""
    code = (
        "import os, signal; from runner.base import files; from runner.cli.commands import init\n"
        "count = [0]; real = files.publish\n"
        "def publish(temporary, path):\n"
        "    count[0] += 1\n"
        f"    os.kill(os.getpid(), signal.SIGKILL) if count[0] == {number} else real(temporary, path)\n"
        "files.publish = publish\n"
        "init.run(['output=mine'])"
    )
    init.run([f"output={tmp_path / 'whole' / 'mine'}"])
    place = tmp_path / "place"
    (place / "mine" if exists else place).mkdir(parents=True)
    done = subprocess.run([sys.executable, "-c", code], cwd=place, capture_output=True, check=False, env=_env())
    assert done.returncode == -signal.SIGKILL, done.stderr
    files = [path for path in (place / "mine").rglob("*") if path.is_file() and path.suffix != ".tmp"]
    assert len(files) == (number - 1 if exists else 0)
    for path in files:
        assert path.read_bytes() == (tmp_path / "whole" / "mine" / path.relative_to(place / "mine")).read_bytes()
    if not exists:  # what the killed one left beside is cleared away
        init.run([f"output={place / 'mine'}"])
        assert [path.name for path in place.iterdir()] == ["mine"]


def _env(**more: str) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT), **more}


@pytest.fixture
def repository(tmp_path) -> Path:
    """A project in a git repository, whose hooks find this Python as `python`."""
    shim = tmp_path / "bin" / "python"
    shim.parent.mkdir()
    shim.write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@" --config-dir conf\n')
    shim.chmod(0o755)
    init.run([f"output={tmp_path / 'mine'}"])
    git(tmp_path / "mine", "init", "-q")
    return tmp_path / "mine"


def git(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    path = f"{folder.parent / 'bin'}{os.pathsep}{os.environ['PATH']}"
    who = {f"GIT_{role}_{part}": "me@example.org" for role in ("AUTHOR", "COMMITTER") for part in ("NAME", "EMAIL")}
    environment = _env(PATH=path, PRE_COMMIT_HOME=str(folder.parent / "pre-commit"), GIT_CONFIG_GLOBAL="", **who)
    return subprocess.run(["git", *arguments], cwd=folder, capture_output=True, text=True, check=False, env=environment)


def by_git(folder: Path) -> None:
    assert git(folder, "config", "core.hooksPath", ".githooks").returncode == 0


def by_pre_commit(folder: Path) -> None:
    pytest.importorskip("pre_commit")
    done = subprocess.run(
        [sys.executable, "-m", "pre_commit", "install"], cwd=folder, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout


@pytest.mark.long
@pytest.mark.parametrize("install", [by_git, by_pre_commit])
def test_an_experiment_with_a_typo_is_not_committed(repository, install):
    install(repository)
    git(repository, "add", "-A")
    done = git(repository, "commit", "-qm", "first")
    assert done.returncode == 0, done.stderr
    experiments = repository / "conf" / "experiment"
    (experiments / "paper").mkdir()
    (experiments / "paper" / "my-table.yaml").write_text(GOOD)
    (experiments / "typo.yaml").write_text(f"# @package _global_\n{BAD}")
    git(repository, "add", "-A")
    done = git(repository, "commit", "-qm", "typo")
    assert done.returncode == 1
    told = done.stdout + done.stderr
    assert "trainer.epchos" in told
    assert "conf/experiment/typo.yaml: does not validate" in told
    assert "my-table.yaml: does not" not in told
    git(repository, "rm", "-qf", "conf/experiment/typo.yaml")
    (repository / "notes.txt").write_text("")
    git(repository, "add", "-A")
    done = git(repository, "commit", "-qm", "good")
    assert done.returncode == 0, done.stdout + done.stderr
    assert git(repository, "log", "--format=%s").stdout.split() == ["good", "first"]


def test_the_hook_of_git_checks_what_is_committed(repository):
    """The file in the folder is good, the staged one is not."""
    by_git(repository)
    file = repository / "conf" / "experiment" / "first.yaml"
    file.write_text(BAD)
    git(repository, "add", "-A")
    file.write_text(GOOD)
    done = git(repository, "commit", "-qm", "typo")
    assert done.returncode == 1
    assert "first.yaml: has changes that are not staged" in done.stderr


def test_names_of_files_are_no_commands(repository):
    by_git(repository)
    (repository / "conf" / "experiment" / "$(touch pwned);`touch pwned` 'x.yaml").write_text(GOOD)
    (repository / "conf" / "experiment" / "a\nb.yaml").write_text(GOOD)
    git(repository, "add", "-A")
    done = git(repository, "commit", "-qm", "odd")
    assert done.returncode == 1
    assert "must be the name of an option" in done.stderr
    assert not (repository / "pwned").exists()


def test_the_line_of_the_workflow_needs_no_data(repository):
    """As GitHub runs it: every experiment, the config alone."""
    steps = yaml.safe_load((repository / ".github/workflows/validate.yml").read_text())["jobs"]["experiments"]["steps"]
    line, more = steps[-1]["run"], steps[-1]["env"]
    experiments = repository / "conf" / "experiment"
    (experiments / "photos.yaml").write_text(
        "# @package _global_\ndefaults:\n  - override /data: folder\ndata:\n  root: not_here\n"
    )

    def check() -> subprocess.CompletedProcess[str]:
        path = f"{repository.parent / 'bin'}{os.pathsep}{os.environ['PATH']}"
        return subprocess.run(
            ["bash", "-e", "-c", line],
            cwd=repository,
            capture_output=True,
            text=True,
            check=False,
            env=_env(PATH=path, **more),
        )

    done = check()
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("valid config") == 2
    (experiments / "photos.yaml").write_text(f"# @package _global_\n{BAD}")
    done = check()
    assert done.returncode != 0
    assert "photos.yaml: does not validate" in done.stderr
