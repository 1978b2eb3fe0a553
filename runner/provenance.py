"""Where a run came from: code, packages, machine. Enough to explain and repeat it."""

from __future__ import annotations

import importlib.metadata
import platform
import socket
import subprocess
from dataclasses import dataclass
from pathlib import Path

_GIT_TIMEOUT_SECONDS = 10


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
    """Ask git about the repository around a folder; no git, or no repository, is no error."""
    commit = _git(folder, "rev-parse", "HEAD")
    if commit is None:
        return GitState(commit=None, dirty=None, patch="")
    # Whatever git is configured to show: a patch that `git apply` reads.
    patch = _git(folder, "diff", "--binary", "--no-ext-diff", "--no-textconv", "--no-color", "HEAD")
    return GitState(commit=commit.strip(), dirty=None if patch is None else bool(patch), patch=patch or "")


def _git(folder: Path, *arguments: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), *arguments],
            capture_output=True,
            check=False,
            timeout=_GIT_TIMEOUT_SECONDS,
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
