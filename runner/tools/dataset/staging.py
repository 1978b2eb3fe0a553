"""An output folder that is created by one rename once it is complete, and never replaces another."""

from __future__ import annotations

import glob
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from runner.base.console import LOGGER
from runner.base.errors import OutputError, UsageError
from runner.base.files import locked, named_write_errors, publish
from runner.base.untrusted import printable

_LOCK = "lock"


def full_path(path: str) -> Path:
    """The absolute path of a typed one, `~` expanded, links kept.

    Raises:
        UsageError: `~` of an unknown user, or a NUL character.
    """
    if "\0" in path:
        raise UsageError(f"{printable(path)}: this is no path: it has a NUL character in it")
    try:
        expanded = Path(path).expanduser()
    except RuntimeError as error:
        raise UsageError(f"{path}: {error}; write the full path instead of ~") from error
    return Path(os.path.abspath(expanded))  # noqa: PTH100 - resolve() would replace links by what they point to


def refuse_existing(output: Path) -> None:
    """Refuse an output that exists, unless it is an empty folder.

    Raises:
        OutputError: it exists, or can't be accessed.
    """
    with named_write_errors(output):
        if output.is_symlink() or (output.exists() and not (output.is_dir() and not any(output.iterdir()))):
            raise OutputError(f"output = {output}: already exists and is never overwritten; choose another")


def refuse_within(output: Path, folder: Path) -> None:
    """Refuse an output within the input folder.

    Raises:
        OutputError: the output is this folder or lies in it.
    """
    # Path.resolve() would raise for a link to itself, which reading the input reports by name.
    if Path(os.path.realpath(output)).is_relative_to(os.path.realpath(folder)):
        raise OutputError(f"output = {output}: lies within the input {folder}, which is never changed; choose another")


def refuse_full_disk(output: Path, num_bytes: int) -> None:
    """Refuse an output that does not fit on the disk, before anything is written.

    Raises:
        OutputError: the disk has less free space than these bytes.
    """
    existing = next(folder for folder in output.parents if folder.is_dir())
    free = shutil.disk_usage(existing).free
    if num_bytes > free:
        raise OutputError(
            f"output = {output}: needs {num_bytes / 1e9:,.2f} GB, but only {free / 1e9:,.2f} GB are free there; free "
            "space or choose another folder"
        )


@contextmanager
def new_folder(output: Path) -> Iterator[Path]:
    """An empty folder to fill, which becomes `output` at the end of the block; removed if the block raises.

    It lies beside `output`, hidden, so that the last step is one rename. Folders that killed processes have left are
    recognised by their released locks, and removed.

    Raises:
        OutputError: it can't be written, or `output` has been created meanwhile.
    """
    refuse_existing(output)
    with named_write_errors(output):
        output.parent.mkdir(parents=True, exist_ok=True)
        _remove_leftovers(output)
        staging = Path(tempfile.mkdtemp(prefix=_prefix(output), dir=output.parent))
    folder = staging / "content"
    try:
        with locked(staging / _LOCK):
            with named_write_errors(output):
                folder.mkdir()
            yield folder
            # So that a power cut after the rename loses no file content; one call for all files.
            os.sync()
            publish(folder, output)
    finally:
        # Where this fails, the next call removes it.
        shutil.rmtree(staging, ignore_errors=True)


def _prefix(output: Path) -> str:
    return f".{output.name}.unfinished-"


def _remove_leftovers(output: Path) -> None:
    for leftover in output.parent.glob(f"{glob.escape(_prefix(output))}*"):
        lock = leftover / _LOCK
        if not lock.exists():
            continue  # it was created this moment, or a process was killed then
        try:
            with locked(lock):
                shutil.rmtree(leftover)
        except BlockingIOError:
            continue
        LOGGER.info("removed %s, which a process that was killed had left", leftover)
