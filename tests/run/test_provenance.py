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


def test_what_the_user_says_of_differences_makes_no_other_patch(repository, tmp_path):
    (repository / "folder").mkdir()
    (repository / "new.py").write_text("x = 1\n")
    for key in ("diff.noprefix", "diff.mnemonicPrefix", "diff.relative"):
        git(repository, "config", "--global", key, "true")
    git(repository, "clone", "-q", str(repository), str(tmp_path / "clone"))
    (tmp_path / "source.patch").write_text(git_state(repository / "folder").patch)
    git(tmp_path / "clone", "apply", str(tmp_path / "source.patch"))
    assert (tmp_path / "clone" / "train.txt").read_text() == "two\n"
    assert (tmp_path / "clone" / "new.py").read_text() == "x = 1\n"


def test_what_is_committed_is_not_left_out(repository, tmp_path):
    (repository / "link").symlink_to(tmp_path)
    git(repository, "add", "link")
    git(repository, *WHO, "commit", "-q", "-m", "second")
    assert git_state(repository).left_out == ()


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


@pytest.mark.parametrize(
    "name", ["a=b", "c\vd", "c\fd", "c\x1cd", "c\x85d", "c\u2028d", "c.clean", "é", "local", "x.required"]
)
def test_no_name_of_a_filter_hides_it(repository, tmp_path, name):
    evil, trace = program(tmp_path)
    git(repository, "config", f"filter.{name}.clean", str(evil))
    (repository / ".git" / "info" / "attributes").write_text(f"* filter={name}\n")
    os.utime(repository / "train.txt")
    assert "-one\n+two" in git_state(repository).patch
    assert not trace.exists()
    git(repository, "diff", "HEAD")
    assert trace.exists(), "git itself would step into it"


def test_filters_of_the_users_own_config_work(repository, tmp_path):
    git(repository, "config", "--global", "filter.upper.clean", "tr a-z A-Z")
    (repository / ".git" / "info" / "attributes").write_text("* filter=upper\n")
    assert "+TWO" in git_state(repository).patch


def test_the_users_own_settings_in_the_environment_count(repository, monkeypatch):
    for name, value in {"COUNT": "1", "KEY_0": "filter.upper.clean", "VALUE_0": "tr a-z A-Z"}.items():
        monkeypatch.setenv(f"GIT_CONFIG_{name}", value)
    (repository / ".git" / "info" / "attributes").write_text("* filter=upper\n")
    assert "+TWO" in git_state(repository).patch


@pytest.mark.parametrize("place", ["elsewhere", ".."])
def test_files_elsewhere_are_no_changes_of_a_repository(repository, tmp_path, place):
    (tmp_path / "elsewhere").mkdir()
    for folder in (tmp_path, tmp_path / "elsewhere"):
        (folder / "train.txt").write_text("secret\n")
    git(repository, "config", "core.worktree", str(tmp_path / place))
    state = git_state(repository)
    assert (state.dirty, state.patch) == (None, "")


@pytest.mark.parametrize("way", ["file", "link", "commondir"])
def test_another_repository_is_not_copied_either(repository, tmp_path, way):
    theirs = tmp_path / "received"
    theirs.mkdir()
    mine = (repository / ".git").resolve()
    if way == "file":
        (theirs / ".git").write_text(f"gitdir: {mine}\n")
    elif way == "link":
        (theirs / ".git").symlink_to(mine)
    else:
        (theirs / ".git").mkdir()
        (theirs / ".git" / "HEAD").write_text((mine / "HEAD").read_text())
        (theirs / ".git" / "commondir").write_text(f"{mine}\n")
        (theirs / ".git" / "gitdir").write_text(f"{theirs}/.git\n")
    assert "-one" in git(theirs, "diff", "HEAD"), "git itself would"
    assert git_state(theirs).patch == ""


def test_a_folder_like_the_inside_of_a_repository_is_none(repository, tmp_path):
    inside = tmp_path / "received"
    (repository / ".git").rename(inside)
    git(inside, "config", "core.worktree", str(repository))
    assert git_state(inside).commit is None


def test_worktrees_submodules_and_folders_within_have_their_changes(repository, tmp_path):
    git(repository, "worktree", "add", "-q", str(tmp_path / "beside"))
    allowed = ("-c", "protocol.file.allow=always")
    git(repository, *allowed, "submodule", "--quiet", "add", str(repository), "part")
    (repository / "within").mkdir()
    for folder in (tmp_path / "beside", repository / "part"):
        (folder / "train.txt").write_text("two\n")
    for folder in (tmp_path / "beside", repository / "part", repository / "within", repository):
        assert "-one\n+two" in git_state(folder).patch, folder


def test_untracked_files_are_in_the_patch_and_git_applies_it(repository, tmp_path):
    (repository / ".gitignore").write_text("ignored*\n")
    for name, content in {
        "new.py": b"x = 1\n",
        "dir/b c\n.yaml": b"no end of line",
        "data.bin": bytes(range(256)),
        "empty": b"",
        "ignored.txt": b"secret\n",
        ".env": b"TOKEN=x\n",
        "large.bin": bytes(1 << 20) + b"1",
        "outputs/run/run.json": b"{}",
    }.items():
        (repository / name).parent.mkdir(parents=True, exist_ok=True)
        (repository / name).write_bytes(content)
    (repository / "run.sh").write_text("#!/bin/sh\n")
    (repository / "run.sh").chmod(0o755)
    (repository / "inside").symlink_to("dir")
    (repository / "outside").symlink_to(tmp_path)
    (repository / "nested").mkdir()
    git(repository / "nested", "init", "-q")
    (repository / "nested" / "x").write_text("x")
    before = {path: path.stat().st_mtime_ns for path in (repository / ".git").rglob("*")}
    state = git_state(repository, without=[repository / "outputs"])
    assert {path: path.stat().st_mtime_ns for path in (repository / ".git").rglob("*")} == before, "nothing is written"
    git(repository, "clone", "-q", str(repository), str(tmp_path / "clone"))
    patch = tmp_path / "source.patch"
    patch.write_bytes(state.patch.encode(errors="surrogateescape"))
    git(tmp_path / "clone", "apply", str(patch))
    names = [".gitignore", "data.bin", "dir/b c\n.yaml", "empty", "new.py", "run.sh", "train.txt"]
    found = git(tmp_path / "clone", "ls-files", "-z", "--cached", "--others").strip("\0").split("\0")
    assert sorted(found) == sorted([*names, "inside"])
    for name in names:
        assert (tmp_path / "clone" / name).read_bytes() == (repository / name).read_bytes()
    assert (tmp_path / "clone" / "run.sh").stat().st_mode & 0o100
    assert state.dirty
    assert state.num_untracked == 7
    assert list(state.left_out) == [
        ".env (may hold credentials)",
        "nested/ (a repository of its own)",
        "outside (a link out of the repository)",
        "large.bin (larger than 1 MiB)",
    ]
