"""Writes checkpoints while training goes on: from a snapshot, one at a time, in a thread."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

import torch

from runner.base.console import LOGGER
from runner.base.errors import OutputError
from runner.base.files import named_write_errors
from runner.run.checkpoint import CheckpointStore, Tensors

# Kept free for the run's other files, which are small.
_RESERVE_BYTES = 16 << 20


class CheckpointWriter:
    """The only writer of a run's checkpoints.

    :meth:`submit` copies the tensors and returns; the copy is written behind the training's back. At most one write is
    in flight. A write that failed is raised at the next call, and the checkpoints before it stand.
    """

    def __init__(self, store: CheckpointStore) -> None:
        self._store = store
        self._thread: threading.Thread | None = None
        self._error: Exception | None = None
        # Used again for each snapshot: fresh memory would cost more than the copy.
        self._snapshot: dict[str, dict[str, torch.Tensor]] = {}

    @property
    def folder(self) -> Path:
        """Where the checkpoints are."""
        return self._store.folder

    def __enter__(self) -> CheckpointWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._thread is not None:
            self._thread.join()
        if error is None:
            self.wait()
        elif self._error is not None:
            LOGGER.warning("the last checkpoint could not be written either: %s", self._error)

    def submit(self, name: str, tensors: Mapping[str, Tensors], state: Mapping[str, Any], *, is_best: bool) -> None:
        """Save a checkpoint as it is now.

        Args:
            name: of the checkpoint.
            tensors: by file; on any device; may change as soon as this returns.
            state: plain values; must not change afterwards.
            is_best: whether `best` is to name it.

        Raises:
            OutputError: when the disk is too full for it, or an earlier write failed.
        """
        self.wait()
        self._check_space(tensors)
        self._copy(tensors)
        self._thread = threading.Thread(target=self._write, args=(name, state, is_best), name="checkpoint")
        self._thread.start()

    def point_best(self, name: str) -> None:
        """Let `best` name a checkpoint that was submitted before, once it is written.

        Raises:
            OutputError: when it, or the pointer, can't be written.
        """
        self.wait()
        self._store.point("best", name)

    def wait(self) -> None:
        """Wait until nothing is in flight.

        Raises:
            OutputError: when the write failed.
        """
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        error, self._error = self._error, None
        if error is not None:
            raise error

    def _check_space(self, tensors: Mapping[str, Tensors]) -> None:
        needed = _RESERVE_BYTES + sum(value.nbytes for group in tensors.values() for value in group.values())
        folder = self._store.folder
        with named_write_errors(folder):
            folder.mkdir(exist_ok=True)
            free = shutil.disk_usage(folder).free
        if free < needed:
            raise OutputError(
                f"{folder}: a checkpoint needs {needed / 1e6:,.0f} MB, but the disk has {free / 1e6:,.0f} MB left; "
                "the checkpoints so far stand: free space, then resume the run"
            )

    def _copy(self, tensors: Mapping[str, Tensors]) -> None:
        for stem, group in tensors.items():
            kept = self._snapshot.setdefault(stem, {})
            for key in kept.keys() - group.keys():
                del kept[key]
            for key, value in group.items():
                if key not in kept:
                    kept[key] = torch.empty(value.shape, dtype=value.dtype, pin_memory=value.is_cuda)
                kept[key].copy_(value, non_blocking=value.is_cuda)
        if any(value.is_cuda for group in tensors.values() for value in group.values()):
            torch.cuda.synchronize()

    def _write(self, name: str, state: Mapping[str, Any], is_best: bool) -> None:
        try:
            self._store.save(name, self._snapshot, state)
            self._store.point("last", name)
            if is_best:
                self._store.point("best", name)
            self._store.prune()
        except Exception as error:
            self._error = error
