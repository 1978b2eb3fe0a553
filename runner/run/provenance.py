"""The provenance of a run: commit, changes and files of the git repository that it was started in."""

from __future__ import annotations

import os
import re
import stat
import subprocess
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

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
# Of untracked files in source.patch, which each run has: enough for code and configs, not for data or weights.
_MOST_BYTES_OF_A_FILE = 1 << 20
_MOST_BYTES_IN_ALL = 8 << 20
_MOST_FILES = 500
# Untracked files that are left out although git does not ignore them yet: nobody wants them in each run folder.
_CREDENTIALS = re.compile(
    r"(?i)\.env(\..*)?|\.?netrc|\.pypirc|\.npmrc|\.git-credentials|\.pgpass|kaggle\.json|(.*[._-])?credentials(\..*)?"
    r"|(.*[._-])?secrets?(\..*)?|id_(rsa|dsa|ecdsa|ed25519)|.*\.(pem|key|p12|pfx|jks|keystore|kdbx)"
)
_OF_THE_USER = ("system", "global", "command")
# A patch for `git apply`, whatever the user's config says about the display of differences.
_PLAIN = (
    *("--binary", "--no-ext-diff", "--no-textconv", "--no-color", "--ignore-submodules=all"),
    *("--src-prefix=a/", "--dst-prefix=b/", "--no-relative"),
)
_FILTER_PROGRAM = re.compile(r"filter\..*\.(?:clean|smudge|process|required)", re.DOTALL)


@dataclass(frozen=True, kw_only=True)
class GitState:
    """State of the git repository that the run was started in."""

    commit: str | None
    """Full hash; None outside a repository or before its first commit."""
    dirty: bool | None
    """Whether tracked files differ from the commit; None outside a repository, or where git fails."""
    patch: str
    """The difference of the files to the commit, with the untracked ones that git does not ignore, for `git apply`."""
    num_untracked: int = 0
    """Untracked files in the patch."""
    left_out: tuple[str, ...] = ()
    """Untracked files that are not in the patch, each with the reason."""


@dataclass(frozen=True, kw_only=True)
class Committable:
    """What git would commit with `git add --all`, as it lies in the working tree."""

    top: Path
    """The topmost folder of the repository, without links."""
    tracked: tuple[str, ...]
    """Paths from there, sorted, of regular files and of links that stay within the repository."""
    untracked: tuple[str, ...]
    """The same of files that are not in git yet and not ignored."""
    left_out: tuple[str, ...]
    """Paths that are neither, or should not be copied, each with the reason."""


def git_state(folder: Path, *, without: Iterable[Path] = ()) -> GitState:
    """The state of the repository around a folder; all None without git or a repository.

    Programs that the repository's own config names are not started; filters of the user's config (Git LFS) are.

    Args:
        folder: any folder in the repository.
        without: folders whose untracked files don't count, such as those of runs.
    """
    commit = _git(folder, "rev-parse", "--verify", "--end-of-options", "HEAD")
    if commit is None:
        return GitState(commit=None, dirty=None, patch="")
    without_filters = _without_filters(folder) if top_of_repository(folder) is not None else None
    patch = None if without_filters is None else _git(folder, "diff", *_PLAIN, "HEAD", config=without_filters)
    chosen: list[str] = []
    left_out: list[str] = []
    added: bytes | None = b""
    if (
        without_filters is not None
        and (found := files_to_commit(folder, without=without, only_untracked=True)) is not None
    ):
        chosen, too_large = _small_enough(found.top, found.untracked)
        left_out = [*found.left_out, *too_large]
        added = _patch_of_new(found.top, chosen, without_filters) if chosen else b""
        if added is None:
            left_out, chosen = [*left_out, *(f"{name} (git made no patch of it)" for name in chosen)], []
    return GitState(
        commit=commit.decode().strip(),
        dirty=None if patch is None else bool(patch),
        patch=((patch or b"") + (added or b"")).decode(errors="surrogateescape"),
        num_untracked=len(chosen),
        left_out=tuple(left_out),
    )


def files_to_commit(folder: Path, *, without: Iterable[Path] = (), only_untracked: bool = False) -> Committable | None:
    """What `git add --all` would take of the repository around a folder; None without git or a repository.

    No link is followed, and nothing that git ignores is listed. Untracked files whose names say that they hold
    credentials are left out too.

    Args:
        folder: any folder in the repository.
        without: folders whose untracked files don't count.
        only_untracked: list no tracked files, each of which would have to be looked at.
    """
    top = top_of_repository(folder)
    if top is None:
        return None
    lists = [_git(top, "ls-files", "-z", *which) for which in (("--cached",), ("--others", "--exclude-standard"))]
    if None in lists:
        return None
    tracked, untracked = (sorted({os.fsdecode(name) for name in (text or b"").split(b"\0") if name}) for text in lists)
    if only_untracked:
        tracked = []
    hidden = [path.resolve() for path in without]
    untracked = [name for name in untracked if not any((top / name).is_relative_to(path) for path in hidden)]
    left_out: list[str] = []
    kept: list[list[str]] = [[], []]
    for names, those in zip((tracked, untracked), kept, strict=True):
        for name in names:
            reason = _reason_against(top, name)
            if reason is None and names is untracked and _CREDENTIALS.fullmatch(PurePosixPath(name).name):
                reason = "may hold credentials"
            if reason is None:
                those.append(name)
            elif reason:
                left_out.append(f"{name} ({reason})")
    return Committable(top=top, tracked=tuple(kept[0]), untracked=tuple(kept[1]), left_out=tuple(left_out))


def is_plain_name(name: str) -> bool:
    """Whether a relative path leads down only, and not into a repository's own folder; an index may hold anything."""
    parts = name.split("/")
    return all(part not in ("", ".", "..") and part.lower() != ".git" for part in parts) and "\0" not in name


def _reason_against(top: Path, name: str) -> str | None:
    """Why a path is not copied; None: it is, an empty text: there is nothing, as for a deleted file."""
    if name.endswith("/"):
        return "a repository of its own"
    if not is_plain_name(name):
        return "no path within the repository"
    path = top / name
    try:
        mode = path.lstat().st_mode
    except OSError:
        return ""
    if stat.S_ISLNK(mode):
        target = path.resolve()
        is_inside = target.is_relative_to(top) and is_plain_name(target.relative_to(top).as_posix())
        reason = None if is_inside and not path.readlink().is_absolute() else "a link out of the repository"
    elif stat.S_ISDIR(mode):
        reason = "a repository of its own"
    else:
        reason = None if stat.S_ISREG(mode) else "no regular file"
    return "reached through a link" if path.parent.resolve() != path.parent else reason


def _small_enough(top: Path, names: Sequence[str]) -> tuple[list[str], list[str]]:
    """The untracked files for source.patch, and those that are left out for their size or number."""
    chosen: list[str] = []
    left_out: list[str] = []
    num_left = _MOST_BYTES_IN_ALL
    for name in names:
        num_bytes = (top / name).lstat().st_size
        if num_bytes > _MOST_BYTES_OF_A_FILE:
            left_out.append(f"{name} (larger than {_MOST_BYTES_OF_A_FILE >> 20} MiB)")
        elif num_bytes > num_left or len(chosen) == _MOST_FILES:
            left_out.append(f"{name} (beyond {_MOST_FILES} files or {_MOST_BYTES_IN_ALL >> 20} MiB in all)")
        else:
            chosen.append(name)
            num_left -= num_bytes
    return chosen, left_out


def _patch_of_new(top: Path, names: Sequence[str], config: Mapping[str, str]) -> bytes | None:
    """The patch that creates these files; None where git fails. Nothing is written to the repository."""
    with tempfile.TemporaryDirectory(prefix="runner-git-") as temporary:
        apart = {
            "GIT_INDEX_FILE": f"{temporary}/index",
            "GIT_OBJECT_DIRECTORY": temporary,
            "GIT_LITERAL_PATHSPECS": "1",
        }
        listed = ("--pathspec-from-file=-", "--pathspec-file-nul")
        text = b"".join(os.fsencode(name) + b"\0" for name in names)
        # Of a file that is only meant to be added, the index holds no content, and all of it is new.
        if _git(top, "add", "--intent-to-add", *listed, config=config, environment=apart, text=text) is None:
            return None
        return _git(top, "diff", *_PLAIN, config=config, environment=apart)


def top_of_repository(folder: Path) -> Path | None:
    """The topmost folder of the repository around a folder, where both name each other; else None.

    The config of a received repository may name any folder as its working tree, and its `.git` may point to another
    repository of the user: the patch would then contain files that don't belong to it. For a worktree or a submodule,
    whose repository lies elsewhere, that repository must name the working tree.
    """
    answer = _paths(folder, "--show-toplevel", "--absolute-git-dir", "--git-common-dir")
    if len(answer) != 3:
        return None
    top, repository, shared = (path.resolve() for path in answer)
    if "GIT_DIR" in os.environ:
        return top  # the user chose the repository
    if _paths(answer[0], "--absolute-git-dir") != [answer[1]]:
        return None
    if shared.is_relative_to(top):
        is_named = True
    elif repository == shared:  # of a submodule
        is_named = _git(folder, "config", "core.worktree") is not None
    else:
        is_named = repository.parent == shared / "worktrees" and _named_by(repository) == top / ".git"
    return top if is_named else None


def _named_by(repository: Path) -> Path | None:
    """The `.git` file of the worktree to which a repository belongs."""
    try:
        return Path(os.fsdecode((repository / "gitdir").read_bytes().strip())).resolve()
    except OSError:
        return None


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


def _git(
    folder: Path,
    *arguments: str,
    config: Mapping[str, str] | None = None,
    environment: Mapping[str, str] | None = None,
    text: bytes = b"",
) -> bytes | None:
    """What git prints; None where it fails. `text` is what it reads."""
    settings = _as_environment({**_NO_PROGRAMS, **(config or {})})
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), *arguments],
            capture_output=True,
            check=False,
            timeout=_GIT_TIMEOUT_SECONDS,
            input=text,
            env={**os.environ, **_ENVIRONMENT, **settings, **(environment or {})},
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
