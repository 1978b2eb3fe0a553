"""Where a run came from: code, packages, machine. Enough to explain and repeat it."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import re
import socket
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

_GIT_TIMEOUT_SECONDS = 10
# A repository's own config can name programs, which git would start: watchers of files, hooks, signers, helpers of
# transports, filters of content. A folder that came from somebody else may hold such a repository.
_NO_PROGRAMS = {
    "core.fsmonitor": "false",
    "core.hooksPath": "/dev/null",
    "core.untrackedCache": "false",
    "core.pager": "cat",
    "log.showSignature": "false",
    "diff.external": "",
    "submodule.recurse": "false",
    "protocol.allow": "never",
    "safe.bareRepository": "explicit",  # a folder that looks like the inside of a `.git` is none
}
_ENVIRONMENT = {
    "GIT_OPTIONAL_LOCKS": "0",  # the index stays as it is, and no hook is told of a change
    "GIT_NO_LAZY_FETCH": "1",  # a partial clone would ask its remote
    "GIT_ALLOW_PROTOCOL": "none",
    "GIT_TERMINAL_PROMPT": "0",
    "GIT_PAGER": "cat",
}
_OF_THE_USER = ("system", "global", "command")
_FILTER_PROGRAM = re.compile(r"filter\..*\.(?:clean|smudge|process|required)", re.DOTALL)


@dataclass(frozen=True, kw_only=True)
class GitState:
    """State of the git repository that the run was started in."""

    commit: str | None
    """Full hash; None outside a repository or before its first commit."""
    dirty: bool | None
    """Whether tracked files differ from the commit; None outside a repository, or where git does not say."""
    patch: str
    """The difference of tracked files to the commit, as `git apply` reads it."""


def git_state(folder: Path) -> GitState:
    """Ask git about the repository around a folder; no git, or no repository, is no error.

    Nothing is started that the repository itself names. Filters of the user's own config (Git LFS) work as ever.
    """
    commit = _git(folder, "rev-parse", "--verify", "--end-of-options", "HEAD")
    if commit is None:
        return GitState(commit=None, dirty=None, patch="")
    without_filters = _without_filters(folder) if _is_around(folder) else None
    # Whatever git is configured to show: a patch that `git apply` reads.
    plain = ("--binary", "--no-ext-diff", "--no-textconv", "--no-color", "--ignore-submodules=all")
    patch = None if without_filters is None else _git(folder, "diff", *plain, "HEAD", config=without_filters)
    told = (patch or b"").decode(errors="surrogateescape")
    return GitState(commit=commit.decode().strip(), dirty=None if patch is None else bool(patch), patch=told)


def _is_around(folder: Path) -> bool:
    """Whether the repository and the files that it is about belong together, as each of them says.

    The config of a received repository may name any folder as that of its files, and its `.git` may lead to a
    repository of the user's: either would be copied into the patch. A worktree or a submodule, whose repository lies
    elsewhere, is named there.
    """
    if "GIT_DIR" in os.environ:
        return True  # the user says so
    said = _paths(folder, "--show-toplevel", "--absolute-git-dir", "--git-common-dir")
    if len(said) != 3 or _paths(said[0], "--absolute-git-dir") != [said[1]]:
        return False
    top, repository, shared = (path.resolve() for path in said)
    if shared.is_relative_to(top):
        return True
    if repository == shared:  # of a submodule
        return _git(folder, "config", "core.worktree") is not None
    try:
        named = (repository / "gitdir").read_bytes()
    except OSError:
        return False
    return repository.parent == shared / "worktrees" and Path(os.fsdecode(named.strip())).resolve() == top / ".git"


def _paths(folder: Path, *flags: str) -> list[Path]:
    said = _git(folder, "rev-parse", "--path-format=absolute", *flags) or b""
    return [Path(os.fsdecode(line)) for line in said.split(b"\n") if line]


def _without_filters(folder: Path) -> dict[str, str] | None:
    """What leaves out the filters that the repository's own config names; None where git does not list it.

    To list a config starts nothing. Nothing but NUL is sure to stand in no name.
    """
    listed = _git(folder, "config", "-z", "--show-scope", "--name-only", "--list")
    if listed is None:
        return None
    words = os.fsdecode(listed).split("\0")
    keys = {key for scope, key in zip(words[::2], words[1::2], strict=False) if scope not in _OF_THE_USER}
    return {key: "false" if key.endswith(".required") else "" for key in sorted(keys) if _FILTER_PROGRAM.fullmatch(key)}


def _git(folder: Path, *arguments: str, config: Mapping[str, str] | None = None) -> bytes | None:
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), *arguments],
            capture_output=True,
            check=False,
            timeout=_GIT_TIMEOUT_SECONDS,
            stdin=subprocess.DEVNULL,
            env={**os.environ, **_ENVIRONMENT, **_as_environment({**_NO_PROGRAMS, **(config or {})})},
        )
    except (OSError, ValueError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None


def _as_environment(config: Mapping[str, str]) -> dict[str, str]:
    """Settings for git, after those that the user's environment has; `-c` could not tell an equals sign in a name."""
    given = os.environ.get("GIT_CONFIG_COUNT", "")
    first = int(given) if given.isdecimal() else 0
    found = {"GIT_CONFIG_COUNT": str(first + len(config))}
    for number, (key, value) in enumerate(config.items(), first):
        found |= {f"GIT_CONFIG_KEY_{number}": key, f"GIT_CONFIG_VALUE_{number}": value}
    return found


def installed_packages() -> str:
    """One `name==version` per line, sorted."""
    # Each look at a distribution's metadata reads its file anew.
    all_metadata = [distribution.metadata for distribution in importlib.metadata.distributions()]
    found = {f"{metadata['Name']}=={metadata['Version']}" for metadata in all_metadata if metadata["Name"]}
    return "\n".join(sorted(found, key=str.lower)) + "\n"


def versions() -> dict[str, str]:
    """Versions of what decides about the numbers."""
    packages = ("runner", "torch", "torchvision", "numpy", "pillow", "simplejpeg", "hydra-core")
    found = {"python": platform.python_version()}
    for name in packages:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = "not installed as a package"
    return found


def host() -> str:
    """Name of this machine."""
    return socket.gethostname()
