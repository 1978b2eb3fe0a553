"""Optuna's storage of a sweep: journal.log in its folder, or a database (`sweep.storage`)."""

from __future__ import annotations

import math
import os
from collections.abc import Generator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import optuna
from optuna.exceptions import StorageInternalError
from optuna.pruners import BasePruner
from optuna.samplers import BaseSampler
from optuna.storages import BaseStorage, JournalStorage, get_storage
from optuna.storages.journal import JournalFileBackend, JournalFileOpenLock
from optuna.study import Study

from runner.base.errors import ConfigError, OutputError, Problem
from runner.base.files import locked
from runner.config.schema.sweep import SweepConfig
from runner.tools.sweep.sweep_folder import SweepFolder

STORAGE_ERRORS = (StorageInternalError, OSError, OutputError)
_NAME_IN_OWN_FILE = "sweep"
_LINE_END = b"\n"
_MOST_BYTES = 1 << 30  # some kilobytes per trial


class JournalLock(JournalFileOpenLock):
    """A lock that a killed process releases. Optuna's own locks are files, which would stay."""

    def __init__(self, journal: Path) -> None:
        super().__init__(str(journal), grace_period=None)
        self._journal = journal
        self._held = ExitStack()

    def acquire(self) -> bool:
        """Wait for the lock, then remove a last line that a power cut has left incomplete."""
        lock = self._journal.with_name(f".{self._journal.name}.lock")
        self._held.enter_context(locked(lock, wait_seconds=math.inf))
        _remove_incomplete_line(self._journal)
        return True

    def release(self) -> None:
        """Release the lock."""
        self._held.close()


class Journal(JournalFileBackend):
    """Optuna's file of one record per line; reading it names the line that is damaged."""

    def __init__(self, path: Path) -> None:
        super().__init__(str(path), lock_obj=JournalLock(path))
        self._path = path

    def read_logs(self, log_number_from: int) -> Generator[dict[str, Any], None, None]:
        """The records from this number on.

        Raises:
            OutputError: a line is no record, or the file is larger than 1 GiB.
        """
        number = log_number_from
        if self._path.stat().st_size > _MOST_BYTES:
            raise _damaged(self._path, f": it is larger than {_MOST_BYTES:,} bytes")
        try:
            for log in super().read_logs(log_number_from):
                if not isinstance(log, dict):
                    raise ValueError("it holds no record")  # noqa: TRY004, TRY301 - damage, as a line that is no JSON
                yield log
                number += 1
        except (ValueError, RecursionError) as error:
            raise _damaged(self._path, f" in line {number + 1}: {error}") from error


def _remove_incomplete_line(journal: Path) -> None:
    if not journal.is_file():
        return
    with journal.open("r+b") as file:
        size = file.seek(0, os.SEEK_END)
        if size == 0 or size > _MOST_BYTES:
            return
        file.seek(size - 1)
        if file.read(1) != _LINE_END:
            file.seek(0)
            file.truncate(file.read().rfind(_LINE_END) + 1)


def open_storage(sweep: SweepConfig, folder: SweepFolder) -> BaseStorage:
    """The storage of a sweep.

    Raises:
        ConfigError: the database can't be opened.
    """
    if sweep.storage is None:
        return _journal(folder.journal)
    try:
        return get_storage(sweep.storage)
    except Exception as error:  # each database driver has its own errors
        reason = str(error).strip().splitlines()[0]
        message = f"can't be opened: {reason}"
        raise ConfigError(
            [Problem(key="sweep.storage", value=sweep.storage, has_value=True, message=message)]
        ) from error


def _journal(path: Path) -> JournalStorage:
    """Optuna's storage in a file, which may be damaged in ways that Optuna does not check.

    Raises:
        OutputError: it is damaged.
    """
    try:
        return JournalStorage(Journal(path))
    except OutputError:
        raise
    except Exception as error:  # Optuna raises KeyError and the like for a record that lacks a field
        raise _damaged(path, f": {type(error).__name__}: {error}") from error


def _damaged(path: Path, why: str) -> OutputError:
    return OutputError(
        f"{path} is damaged{why}; move it away and resume the sweep: the search is rebuilt from the folders of the "
        "trials"
    )


def study_name(sweep: SweepConfig, folder: SweepFolder) -> str:
    """Name of the study within its storage."""
    if sweep.study is not None:
        return sweep.study
    return _NAME_IN_OWN_FILE if sweep.storage is None else "/".join(folder.path.parts[-2:])


def open_study(
    sweep: SweepConfig, folder: SweepFolder, storage: BaseStorage, *, sampler: BaseSampler, pruner: BasePruner
) -> Study:
    """The study of a sweep; creates it if needed.

    Raises:
        ConfigError: it was begun with other directions.
    """
    optuna.logging.set_verbosity(optuna.logging.ERROR)  # the table of the sweep shows the trials
    study = optuna.create_study(
        storage=storage,
        study_name=study_name(sweep, folder),
        directions=list(sweep.directions),
        sampler=sampler,
        pruner=pruner,
        load_if_exists=True,
    )
    begun = tuple(direction.name.lower() for direction in study.directions)
    if begun != sweep.directions:
        message = f"this search was begun with {list(begun)}; start a new one, with another sweep.dir or sweep.study"
        raise ConfigError(
            [Problem(key="sweep.direction", value=list(sweep.directions), has_value=True, message=message)]
        )
    return study
