"""Where a run came from: code, packages, machine. Enough to explain and repeat it."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import re
import socket
import subprocess
from dataclasses import dataclass
from pathlib import Path

_GIT_TIMEOUT_SECONDS = 10
# A repository's own config can name programs, which git would start: watchers of files, hooks, signers, helpers of
# transports, filters of content. A folder that came from somebody else may hold such a repository.
_NO_PROGRAMS = (
    *("-c", "core.fsmonitor=false"),
    *("-c", "core.hooksPath=/dev/null"),
    *("-c", "core.untrackedCache=false"),
    *("-c", "core.pager=cat"),
    *("-c", "log.showSignature=false"),
    *("-c", "diff.external="),
    *("-c", "submodule.recurse=false"),
    *("-c", "protocol.allow=never"),
)
_ENVIRONMENT = {
    "GIT_OPTIONAL_LOCKS": "0",  # the index stays as it is, and no hook is told of a change
    "GIT_NO_LAZY_FETCH": "1",  # a partial clone would ask its remote
    "GIT_ALLOW_PROTOCOL": "none",
    "GIT_TERMINAL_PROMPT": "0",
    "GIT_PAGER": "cat",
}
_FILTER_PROGRAM = re.compile(
    r"^(?P<scope>local|worktree|command)\t(?P<key>filter\..*\.(?:clean|smudge|process|required))$"
)


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
    # Whatever git is configured to show: a patch that `git apply` reads.
    plain = ("--binary", "--no-ext-diff", "--no-textconv", "--no-color", "--ignore-submodules=all")
    patch = _git(folder, *_without_filters(folder), "diff", *plain, "HEAD")
    return GitState(commit=commit.strip(), dirty=None if patch is None else bool(patch), patch=patch or "")


def _without_filters(folder: Path) -> list[str]:
    """What leaves out the filters that the repository's own config names; to list a config starts nothing."""
    listed = _git(folder, "config", "--show-scope", "--name-only", "--list") or ""
    keys = {match["key"] for line in listed.splitlines() if (match := _FILTER_PROGRAM.match(line))}
    values = {key: "false" if key.endswith(".required") else "" for key in sorted(keys)}
    return [part for key, value in values.items() for part in ("-c", f"{key}={value}")]


def _git(folder: Path, *arguments: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), *_NO_PROGRAMS, *arguments],
            capture_output=True,
            check=False,
            timeout=_GIT_TIMEOUT_SECONDS,
            stdin=subprocess.DEVNULL,
            env={**os.environ, **_ENVIRONMENT},
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.decode(errors="surrogateescape") if done.returncode == 0 else None


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
