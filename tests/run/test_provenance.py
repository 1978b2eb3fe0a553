"""Git is asked about the folder of a run, but starts nothing that this folder names."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from runner.run.provenance import git_state

WHO = ("-c", "user.name=a", "-c", "user.email=a@example.org")


@pytest.fixture
def repository(tmp_path, monkeypatch):
    """A repository with one changed file, asked by a user without a config."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("GIT_CONFIG_NOSYSTEM", "1")
    (tmp_path / "home").mkdir()
    folder = tmp_path / "theirs"
    folder.mkdir()
    git(folder, "init", "-q")
    (folder / "train.txt").write_text("one\n")
    git(folder, "add", ".")
    git(folder, *WHO, "commit", "-q", "-m", "first")
    (folder / "train.txt").write_text("two\n")
    return folder


def git(folder: Path, *arguments: str) -> str:
    return subprocess.run(["git", "-C", str(folder), *arguments], check=True, capture_output=True, text=True).stdout


def test_commit_and_changes_are_told(repository):
    state = git_state(repository)
    assert state.commit == git(repository, "rev-parse", "HEAD").strip()
    assert state.dirty
    assert "-one\n+two" in state.patch


def program(folder: Path) -> tuple[Path, Path]:
    """A program that leaves a trace, and the trace."""
    file, trace = folder / "evil", folder / "trace"
    file.write_text(f"#!/bin/sh\necho run >> '{trace}'\ncat\n")
    file.chmod(0o755)
    return file, trace


PLACES = {
    "fsmonitor": lambda evil: [("core.fsmonitor", str(evil))],
    "clean filter": lambda evil: [("filter.x.clean", str(evil)), ("filter.x.required", "true")],
    "filter process": lambda evil: [("filter.x.process", str(evil))],
    "external diff": lambda evil: [("diff.external", str(evil))],
    "text conversion": lambda evil: [("diff.x.textconv", str(evil)), ("diff.x.command", str(evil))],
    "pager": lambda evil: [("core.pager", str(evil)), ("pager.diff", str(evil))],
    "hooks": lambda evil: [("core.hooksPath", str(evil.parent / "hooks"))],
    "remote": lambda evil: [
        ("extensions.partialClone", "o"),
        ("remote.o.promisor", "true"),
        ("remote.o.url", f"ext::{evil}"),
        ("protocol.ext.allow", "always"),
    ],
}


@pytest.mark.parametrize("place", PLACES)
def test_nothing_is_started_that_a_repository_names(repository, tmp_path, place):
    evil, trace = program(tmp_path)
    (tmp_path / "hooks").mkdir()
    for hook in ("post-index-change", "fsmonitor-watchman", "pre-auto-gc"):
        (tmp_path / "hooks" / hook).symlink_to(evil)
    for key, value in PLACES[place](evil):
        git(repository, "config", key, value)
    (repository / ".git" / "info" / "attributes").write_text("* filter=x diff=x\n")
    os.utime(repository / "train.txt")
    state = git_state(repository)
    assert state.dirty
    assert not trace.exists()
    git(repository, "config", "filter.sure.clean", str(evil))  # the trap works: git itself would step into it
    (repository / ".git" / "info" / "attributes").write_text("* filter=sure\n")
    git(repository, "diff", "HEAD")
    assert trace.exists()


def test_filters_of_the_users_own_config_work(repository, tmp_path):
    git(repository, "config", "--global", "filter.upper.clean", "tr a-z A-Z")
    (repository / ".git" / "info" / "attributes").write_text("* filter=upper\n")
    assert "+TWO" in git_state(repository).patch
