"""Writes checkpoints in a background thread, one at a time, from a snapshot of the tensors."""

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
    """Writes the checkpoints of a run.

    :meth:`submit` copies the tensors and returns; a thread writes the copy. At most one write is in progress. The error
    of a failed write is raised by the next call; earlier checkpoints stay intact.
    """

    def __init__(self, store: CheckpointStore) -> None:
        self._store = store
        self._thread: threading.Thread | None = None
        self._error: Exception | None = None
        # Reused for each snapshot: allocating would take longer than copying.
        self._snapshot: dict[str, dict[str, torch.Tensor]] = {}

    @property
    def folder(self) -> Path:
        """The folder of the checkpoints."""
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
        """Copy the tensors and start to write a checkpoint; waits for the write before.

        Args:
            name: of the checkpoint.
            tensors: by file; on any device; may change as soon as this returns.
            state: plain values; must not change afterwards.
            is_best: whether `best` will name it.

        Raises:
            OutputError: when the disk is too full for it, or an earlier write failed.
        """
        self.wait()
        self._check_space(tensors)
        self._copy(tensors)
        self._thread = threading.Thread(target=self._write, args=(name, state, is_best), name="checkpoint")
        self._thread.start()

    def point_best(self, name: str) -> None:
        """Wait for the write in progress, then let `best` name this checkpoint.

        Raises:
            OutputError: when it, or the pointer, can't be written.
        """
        self.wait()
        self._store.point("best", name)

    def wait(self) -> None:
        """Wait for the write in progress.

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
                "the earlier checkpoints are intact: free space, then resume the run"
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
