"""Checks of paths from users: typed paths, and links in run, sweep and package folders from others."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from pathlib import Path

from runner.base.errors import CheckpointError, ConfigError, Problem
from runner.base.reasons import reason_of
from runner.base.untrusted import printable

# RFC 3986, 3.1; one letter alone is a drive of Windows. No scheme that is in use has more characters.
_ADDRESS = re.compile(r"\s*([A-Za-z][A-Za-z0-9+.-]{1,40})://")


def refuse_outside_links(folder: Path) -> None:
    """Refuse a run, sweep or package folder that contains a link out of it, a FIFO, a device or a socket.

    Called before anything in such a folder is read, written or deleted: through a link that would happen elsewhere, and
    opening a FIFO would block. The folder itself may be a link; links within it are allowed.

    Args:
        folder: need not exist.

    Raises:
        CheckpointError: names the link and its target, or the FIFO, device or socket.
    """
    root = os.path.realpath(folder)
    pending = [root]
    while pending:
        place = pending.pop()
        try:
            with os.scandir(place) as entries:
                for entry in entries:
                    if entry.is_dir(follow_symlinks=False):
                        pending.append(entry.path)
                    else:
                        _check_entry(entry.path, root, is_file=entry.is_file(follow_symlinks=False))
        except (FileNotFoundError, NotADirectoryError):
            continue  # deleted meanwhile, as a live run does with checkpoints
        except OSError as error:
            raise CheckpointError(f"{printable(place)} can't be read: {reason_of(error)}") from error


def refuse_outside_links_at(folder: Path, names: Iterable[str]) -> None:
    """As :func:`refuse_outside_links` for some paths within a folder, without walking all of it.

    Raises:
        CheckpointError: see there.
    """
    root = os.path.realpath(folder)
    for name in names:
        place = os.path.join(root, name)  # noqa: PTH118 - compared with what realpath gives
        if os.path.realpath(place) != place:
            _check_entry(place, root, is_file=False)
        elif os.path.lexists(place) and not os.path.isdir(place):  # noqa: PTH112
            _check_entry(place, root, is_file=os.path.isfile(place))  # noqa: PTH113


def _check_entry(place: str, root: str, *, is_file: bool) -> None:
    if is_file:
        return
    target = os.path.realpath(place)
    if target == place and not os.path.islink(place):  # noqa: PTH114 - as are the paths here
        raise CheckpointError(
            f"{printable(place)} is a FIFO, a device or a socket, and is not opened; in a run, sweep or package folder "
            "there are folders and files only: remove it"
        )
    is_inside = target.startswith(root + os.sep)
    if is_inside and not os.path.islink(target):  # noqa: PTH114 - links in a circle have no end
        return
    raise CheckpointError(
        f"{printable(place)} leads to {printable(target)}, which is not in {printable(root)}; links out of a run, "
        "sweep or package folder are never followed: put there what it links to, or give the folder in which it lies"
    )


def scheme_of(text: str) -> str | None:
    """The scheme of an address, such as s3 of s3://bucket/x, in lower case; None for a path, also C:\\x and a:b."""
    match = _ADDRESS.match(text)
    return match[1].lower() if match else None


def refuse_address(text: str) -> str:
    """The text itself, where it is no address; what is read or written lies on this machine.

    Raises:
        ValueError: says what is wrong, and what to do.
    """
    scheme = scheme_of(text)
    if scheme == "file":
        raise ValueError("is an address, but only paths are taken; type the path alone, without file://")
    if scheme is not None:
        raise ValueError(
            "is a remote address, but only local paths are read and written: copy files here first, and results there "
            "afterwards; an archive of images comes by `dataset import input=https://… output=FOLDER`"
        )
    return text


def refuse_listed_address(path: str, line: int) -> None:
    """Refuse an entry of a list that is an address; what it says is not repeated, as a list may be any file.

    Raises:
        ValueError: says which line it is, what is wrong, and what to do.
    """
    try:
        refuse_address(path)
    except ValueError as error:
        raise ValueError(f"line {line}: the path {error}") from error


def typed_path(text: str, key: str) -> Path:
    """A path with `~` expanded, which :meth:`Path.resolve` can resolve.

    Args:
        text: as typed.
        key: whose value it is, for messages.

    Raises:
        ConfigError: the text is an address or no valid path, or its links are circular.
    """
    try:
        refuse_address(text)
    except ValueError as error:
        raise ConfigError([Problem(key=key, value=text, has_value=True, message=str(error))]) from error
    try:
        path = Path(text).expanduser()
        path.resolve()
        path.exists()  # raises where a name is too long
    except (RuntimeError, ValueError, OSError) as error:  # ~user without such a user; a NUL character
        problem = f"is no path: {reason_of(error)}"
        raise ConfigError([Problem(key=key, value=printable(text), has_value=True, message=problem)]) from error
    return path
