"""Deletes runs and old checkpoints; whatever a run that is not completed could be resumed from stays."""

from __future__ import annotations

import shutil
from pathlib import Path

from runner.base.errors import CheckpointError, OutputError
from runner.base.files import named_write_errors, temporary_beside
from runner.run.checkpoint import CheckpointStore, verify
from runner.run.run_folder import RunFolder, read_record


def delete_run(run_dir: Path) -> int:
    """Delete a run folder.

    Args:
        run_dir: its full path.

    Returns:
        The size of what was deleted, in bytes.

    Raises:
        CheckpointError: the folder is no run folder, or its record is damaged.
        OutputError: a process works on the run, the run could be resumed, or the folder can't be deleted.
    """
    read_record(run_dir)
    with RunFolder(run_dir).hold():
        status = read_record(run_dir)["status"]
        valid = None if status == "completed" else _newest_valid(CheckpointStore(run_dir / "checkpoints", keep=1))
        if valid is not None:
            raise OutputError(
                f"{run_dir} is {status} and can be resumed from its checkpoint {valid}, so it is not deleted; "
                "resume it, or delete the folder by hand"
            )
        size = _size(run_dir)
        with named_write_errors(run_dir):
            # Under another name it is no run of `runs list` any more, even if this process is killed now.
            shutil.rmtree(run_dir.rename(temporary_beside(run_dir)))
    return size


def prune_run(run_dir: Path, keep: int, *, is_dry: bool) -> dict[str, int]:
    """Delete the older checkpoints of a run.

    Args:
        run_dir: its full path.
        keep: how many stay, the newest, beside those that `best` and `last` name and the newest valid one. With 0
            nothing stays of a completed run that has its package.
        is_dry: only find out.

    Returns:
        Bytes by the name of the checkpoint, the oldest first.

    Raises:
        CheckpointError: the folder is no run folder, or its record is damaged.
        OutputError: a process works on the run, or the folder can't be changed.
    """
    read_record(run_dir)
    folder = RunFolder(run_dir)
    with folder.hold():
        store = CheckpointStore(folder.checkpoints, keep)
        names = store.names()
        is_packaged = (folder.model / "model.json").is_file() and (folder.model / "model.safetensors").is_file()
        if keep == 0 and read_record(run_dir)["status"] == "completed" and is_packaged:
            spared: set[str | None] = set()
        else:
            spared = {*names[len(names) - keep :], store.pointed("best"), store.pointed("last"), _newest_valid(store)}
        sizes = {name: _size(store.folder / name) for name in names if name not in spared}
        if not is_dry:
            _delete_checkpoints(store.folder, list(sizes), keeps_pointers=bool(spared))
    return sizes


def _delete_checkpoints(folder: Path, names: list[str], *, keeps_pointers: bool) -> None:
    with named_write_errors(folder):
        if names and not keeps_pointers:
            for pointer in ("best", "last"):
                (folder / pointer).unlink(missing_ok=True)
        for name in names:
            shutil.rmtree((folder / name).rename(temporary_beside(folder / name)))


def _newest_valid(store: CheckpointStore) -> str | None:
    for name in reversed(store.names()):
        try:
            verify(store.folder / name)
        except CheckpointError:  # an older one may be intact
            continue
        return name
    return None


def _size(folder: Path) -> int:
    return sum(path.lstat().st_size for path in folder.rglob("*") if path.is_symlink() or path.is_file())
