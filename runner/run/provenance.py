"""The provenance of a run: git state, installed packages, versions, host."""

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
# A repository's own config can name programs that git starts: file watchers, hooks, signers, transport helpers, content
# filters. A run folder that was received from somebody else may hold such a repository.
_NO_PROGRAMS = {
    "core.fsmonitor": "false",
    "core.hooksPath": "/dev/null",
    "core.untrackedCache": "false",
    "core.pager": "cat",
    "log.showSignature": "false",
    "diff.external": "",
    "submodule.recurse": "false",
    "protocol.allow": "never",
    "safe.bareRepository": "explicit",  # git ignores a folder that only looks like the inside of a `.git`
}
_ENVIRONMENT = {
    "GIT_OPTIONAL_LOCKS": "0",  # does not refresh the index, which would run a hook
    "GIT_NO_LAZY_FETCH": "1",  # a partial clone would contact its remote
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
    """Whether tracked files differ from the commit; None outside a repository, or where git fails."""
    patch: str
    """The difference of tracked files to the commit, for `git apply`."""


def git_state(folder: Path) -> GitState:
    """The state of the repository around a folder; all None without git or a repository.

    Programs that the repository's own config names are not started; filters of the user's config (Git LFS) are.
    """
    commit = _git(folder, "rev-parse", "--verify", "--end-of-options", "HEAD")
    if commit is None:
        return GitState(commit=None, dirty=None, patch="")
    without_filters = _without_filters(folder) if _is_around(folder) else None
    # A patch for `git apply`, whatever the user's config says about the display of differences.
    plain = ("--binary", "--no-ext-diff", "--no-textconv", "--no-color", "--ignore-submodules=all")
    patch = None if without_filters is None else _git(folder, "diff", *plain, "HEAD", config=without_filters)
    text = (patch or b"").decode(errors="surrogateescape")
    return GitState(commit=commit.decode().strip(), dirty=None if patch is None else bool(patch), patch=text)


def _is_around(folder: Path) -> bool:
    """Whether the repository and its working tree name each other.

    The config of a received repository may name any folder as its working tree, and its `.git` may point to another
    repository of the user: the patch would then contain files that don't belong to it. For a worktree or a submodule,
    whose repository lies elsewhere, that repository must name the working tree.
    """
    if "GIT_DIR" in os.environ:
        return True  # the user chose the repository
    answer = _paths(folder, "--show-toplevel", "--absolute-git-dir", "--git-common-dir")
    if len(answer) != 3 or _paths(answer[0], "--absolute-git-dir") != [answer[1]]:
        return False
    top, repository, shared = (path.resolve() for path in answer)
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
    output = _git(folder, "rev-parse", "--path-format=absolute", *flags) or b""
    return [Path(os.fsdecode(line)) for line in output.split(b"\n") if line]


def _without_filters(folder: Path) -> dict[str, str] | None:
    """Settings that disable the filters of the repository's own config; None where git can't list that config.

    Listing a config starts no program. The list is separated by NUL, the one byte that no name can contain.
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
    """Environment variables with settings for git, appended to the user's own; `-c` can't have `=` in a name."""
    given = os.environ.get("GIT_CONFIG_COUNT", "")
    first = int(given) if given.isdecimal() else 0
    found = {"GIT_CONFIG_COUNT": str(first + len(config))}
    for number, (key, value) in enumerate(config.items(), first):
        found |= {f"GIT_CONFIG_KEY_{number}": key, f"GIT_CONFIG_VALUE_{number}": value}
    return found


def installed_packages() -> str:
    """One `name==version` per line, sorted."""
    # Each access to `distribution.metadata` reads the file again.
    all_metadata = [distribution.metadata for distribution in importlib.metadata.distributions()]
    found = {f"{metadata['Name']}=={metadata['Version']}" for metadata in all_metadata if metadata["Name"]}
    return "\n".join(sorted(found, key=str.lower)) + "\n"


def versions() -> dict[str, str]:
    """Versions of Python and of the packages that affect results."""
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
