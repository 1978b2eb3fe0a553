"""Checkpoints: a folder each, written under a temporary name, made durable, then renamed.

A checkpoint is tensors (safetensors) and one JSON state; `manifest.json` holds the SHA-256 of each file. Nothing in
it is ever unpickled. The files `last` and `best` beside them hold the name of a checkpoint.
"""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
import torch

from runner.base.console import LOGGER
from runner.base.errors import CheckpointError
from runner.base.files import (
    named_write_errors,
    replace,
    sha256_of,
    sync_file,
    temporary_beside,
    write_atomic,
    write_json,
)
from runner.base.reasons import first_line
from runner.base.untrusted import UntrustedFileError, open_regular, unreadable
from runner.run.contents import CHECKPOINT_NAME, Contents, Manifest, Pointer, read_object, read_pointer

Tensors = Mapping[str, torch.Tensor]
_STATE = "state.json"
_MANIFEST = "manifest.json"
# By their size in bytes.
_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_ADVICE = "this checkpoint was not kept, the earlier ones are intact: check the disk, then resume the run"


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """A checkpoint that was read and verified."""

    name: str
    state: dict[str, Any]
    tensors: dict[str, dict[str, torch.Tensor]]
    """By file, such as `model` for model.safetensors; on the CPU."""
    damaged: dict[str, Any] | None = None
    """The entry of run.json on the former best checkpoint, where that one is damaged."""


def moment_of(name: str) -> tuple[int, ...]:
    """The sort key of a checkpoint's name: finished epochs, step."""
    return tuple(map(int, name.split("-")))


def checkpoint_name(epoch: int, step: int) -> str:
    """`<epoch>-<step>`, zero-padded so that a listing is sorted."""
    return f"{epoch:04d}-{step:08d}"


class CheckpointStore:
    """The folder `checkpoints/` of a run."""

    def __init__(self, folder: Path, keep: int) -> None:
        self.folder = folder
        self.keep = keep
        self._undeletable: set[Path] = set()  # already logged

    def save(self, name: str, tensors: Mapping[str, Tensors], state: Mapping[str, Any]) -> None:
        """Write a checkpoint atomically; one of the same name is replaced once the new one was verified.

        Args:
            name: of the checkpoint.
            tensors: by file, on the CPU.
            state: plain values.

        Raises:
            OutputError: when it can't be written; earlier checkpoints stay intact.
            CheckpointError: when the disk returns other bytes than were written; earlier checkpoints stay intact.
        """
        path = self.folder / name
        temporary = temporary_beside(path)
        with named_write_errors(path):
            try:
                self.folder.mkdir(exist_ok=True)
                temporary.mkdir()
                _write_files(temporary, tensors, state)
                check_written(temporary, tensors, known_as=path)
                replace(temporary, path)
            finally:
                self._clear_away()

    def point(self, pointer: Pointer, name: str) -> None:
        """Write the name of a checkpoint to `last` or `best`."""
        write_atomic(self.folder / pointer, name + "\n")

    def pointed(self, pointer: Pointer) -> str | None:
        """The name that `last` or `best` holds; None before the first checkpoint."""
        return read_pointer(self.folder / pointer)

    def prune(self) -> None:
        """Delete all but the newest `keep` checkpoints and the one that `best` names."""
        spared = {*self.names()[-self.keep :], self.pointed("best"), self.pointed("last")}
        for name in self.names():
            if name not in spared:
                (self.folder / name).rename(temporary_beside(self.folder / name))
        self._clear_away()

    def _clear_away(self) -> None:
        """Delete temporary files and folders.

        On NFS a file that a process has open can't be deleted: training continues, and the next call tries again.
        """
        for left_over in self.folder.glob(".*.tmp"):
            if not left_over.is_dir():
                left_over.unlink(missing_ok=True)
                continue
            shutil.rmtree(left_over, ignore_errors=True)
            if left_over.exists() and left_over not in self._undeletable:
                self._undeletable.add(left_over)
                LOGGER.warning("%s can't be deleted yet (does a process have it open?): tried again later", left_over)

    def names(self) -> list[str]:
        """Names of the complete checkpoints, oldest first; other entries of the folder are ignored."""
        if not self.folder.is_dir():
            return []
        found = (path.name for path in self.folder.iterdir() if CHECKPOINT_NAME.fullmatch(path.name) and path.is_dir())
        return sorted(found, key=moment_of)

    def newest_valid(self) -> tuple[Checkpoint | None, list[CheckpointError]]:
        """The newest intact checkpoint, and the errors of the damaged ones that are newer."""
        damages: list[CheckpointError] = []
        for name in reversed(self.names()):
            try:
                return self.load(name), damages
            except CheckpointError as error:
                damages.append(error)
        return None, damages

    def roll_back_to(self, checkpoint: Checkpoint | None, best: str | None) -> None:
        """Restore the folder to the state in which this checkpoint was the newest.

        Temporary files of a killed process are removed; later checkpoints, which are damaged, get a name that begins
        with `damaged-`; `last` names this checkpoint, and `best` the given one.
        """
        if not self.folder.is_dir():
            return
        self._clear_away()
        for name in self.names():
            if checkpoint is None or moment_of(name) > moment_of(checkpoint.name):
                self.put_aside(name)
        pointers: dict[Pointer, str | None] = {"last": checkpoint.name if checkpoint else None, "best": best}
        for pointer, pointed in pointers.items():
            if pointed is None:
                (self.folder / pointer).unlink(missing_ok=True)
            else:
                self.point(pointer, pointed)

    def put_aside(self, name: str) -> None:
        """Rename a damaged checkpoint, if it exists, to a name that begins with `damaged-`."""
        if (self.folder / name).is_dir():
            (self.folder / name).rename(self.folder / f"damaged-{name}-{secrets.token_hex(3)}")

    def load(self, name: str) -> Checkpoint:
        """Read and verify a checkpoint.

        Raises:
            CheckpointError: when it is missing, incomplete, or differs from its manifest.
        """
        folder = self.folder / name
        verify(folder)
        state = read_object(folder / _STATE, Contents)
        try:
            tensors = {path.stem: safetensors.torch.load_file(path) for path in sorted(folder.glob("*.safetensors"))}
        except (OSError, safetensors.SafetensorError) as error:
            raise CheckpointError(unreadable(folder, error)) from error
        return Checkpoint(name=name, state=state, tensors=tensors)


def _write_files(folder: Path, tensors: Mapping[str, Tensors], state: Mapping[str, Any]) -> None:
    for stem, group in tensors.items():
        file = folder / f"{stem}.safetensors"
        try:
            safetensors.torch.save_file({key: value.contiguous() for key, value in group.items()}, file)
        except safetensors.SafetensorError as error:  # safetensors raises it for a full disk, too
            raise OSError(str(error)) from error
        # safetensors lets only its owner read a file; who may read the folder may read the weights.
        file.chmod(folder.stat().st_mode & 0o666)
        sync_file(file)
    write_json(folder / _STATE, state)
    write_manifest(folder)


def write_manifest(folder: Path) -> None:
    """Write manifest.json: size and SHA-256 of each file of a folder."""
    files = sorted(path for path in folder.iterdir() if path.name != _MANIFEST)
    entries = {path.name: {"sha256": sha256_of(path), "bytes": path.stat().st_size} for path in files}
    write_json(folder / _MANIFEST, entries)


def check_written(folder: Path, tensors: Mapping[str, Tensors], *, known_as: Path) -> None:
    """Read back the files of a checkpoint and compare them with the tensors, bit for bit.

    This is three times as fast as a second hash of the files, and finds more: the manifest was computed from the files.

    Args:
        folder: of the checkpoint.
        tensors: by file, on the CPU.
        known_as: the final name of the folder, for messages.

    Raises:
        CheckpointError: naming the first file that can't be read or differs.
    """
    for stem, group in tensors.items():
        file = folder / f"{stem}.safetensors"
        try:
            written = safetensors.torch.load_file(file)
        except (OSError, safetensors.SafetensorError) as error:
            file = known_as / file.name
            raise CheckpointError(f"{file} can't be read back ({first_line(error)}); {_ADVICE}") from error
        if written.keys() != group.keys() or not all(_is_same(written[key], value) for key, value in group.items()):
            file = known_as / file.name
            raise CheckpointError(f"{file}: the disk holds other bytes than were written; {_ADVICE}")


def _is_same(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two tensors have the same bits, those of NaN included."""
    if one.dtype != other.dtype:
        return False
    bits = _INTEGERS[one.element_size()]
    return torch.equal(one.view(bits), other.view(bits))


def verify(folder: Path) -> None:
    """Compare each file of a folder with its manifest.

    Raises:
        CheckpointError: naming the first file that is missing or differs.
    """
    try:
        manifest = read_object(folder / _MANIFEST, Manifest)
        unlisted = {path.name for path in folder.iterdir()} - {_MANIFEST, *manifest}
        if unlisted:
            raise CheckpointError(f"{folder} is damaged: {_MANIFEST} does not list {', '.join(sorted(unlisted))}")
        if _STATE not in manifest:
            raise CheckpointError(f"{folder} is damaged: {_MANIFEST} lists no {_STATE}")
        for name, entry in manifest.items():
            file = folder / name
            if Path(name).name != name:
                raise CheckpointError(f"{folder} is damaged: {_MANIFEST} names {name!r}, which is no file in it")
            with open_regular(file) as opened:
                is_same = opened.seek(0, os.SEEK_END) == entry["bytes"]
            if not is_same or sha256_of(file) != entry["sha256"]:
                raise CheckpointError(f"{file} is damaged: it differs from what was written (SHA-256)")
    except FileNotFoundError as error:
        raise CheckpointError(f"{folder} is incomplete: {Path(str(error.filename)).name} is missing") from error
    except (OSError, UntrustedFileError) as error:
        raise CheckpointError(unreadable(folder, error)) from error
