"""Paths from users: one that is typed is a path at all; a folder that may come from elsewhere leads nowhere else."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from runner.base.errors import CheckpointError, ConfigError, Problem
from runner.base.untrusted import printable


def refuse_ways_out(folder: Path) -> None:
    """Refuse a run, sweep or package folder that holds a link out of it, a FIFO, a device or a socket.

    Called where such a folder is opened, before anything of it is read, written or deleted: whoever follows a link in
    it would do so elsewhere, and whoever opens a FIFO would wait for ever. The folder itself may be a link, as the user
    has typed it; links from one place in it to another harm nobody.

    Args:
        folder: need not exist.

    Raises:
        CheckpointError: naming what leads out, and where to.
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
            continue  # gone meanwhile: a living run deletes checkpoints
        except OSError as error:
            raise CheckpointError(f"{printable(place)} can't be read: {error.strerror}") from error


def refuse_ways_out_at(folder: Path, names: Iterable[str]) -> None:
    """The same for a few paths within a folder, for whoever reads no more of thousands of folders.

    Raises:
        CheckpointError: naming what leads out, and where to.
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


def typed_path(text: str, key: str) -> Path:
    """The path, with the home folder for `~`; that :meth:`Path.resolve` can resolve it is sure.

    Args:
        text: as typed.
        key: under which it was typed, for messages.

    Raises:
        ConfigError: no path can be of this name, or its links lead in a circle.
    """
    try:
        path = Path(text).expanduser()
        path.resolve()
        path.exists()  # raises where a name is too long
    except (RuntimeError, ValueError, OSError) as error:  # ~somebody, whom this machine does not know; a NUL
        problem = f"is no path: {error}"
        raise ConfigError([Problem(key=key, value=printable(text), has_value=True, message=problem)]) from error
    return path
