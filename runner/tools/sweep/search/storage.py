"""Where Optuna keeps a search: a file in the folder of the sweep, or any address."""

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
from runner.tools.sweep.folder import SweepFolder

STORAGE_ERRORS = (StorageInternalError, OSError, OutputError)
_NAME_IN_OWN_FILE = "sweep"
_LINE_END = b"\n"
_MOST_BYTES = 1 << 30  # some kilobytes per trial


class JournalLock(JournalFileOpenLock):
    """A lock that dies with its holder; those that Optuna brings are files, which a killed process leaves behind."""

    def __init__(self, journal: Path) -> None:
        super().__init__(str(journal), grace_period=None)
        self._journal = journal
        self._held = ExitStack()

    def acquire(self) -> bool:
        """Wait for the lock, and take away a line that a power cut has left half-written."""
        lock = self._journal.with_name(f".{self._journal.name}.lock")
        self._held.enter_context(locked(lock, wait_seconds=math.inf))
        _mend(self._journal)
        return True

    def release(self) -> None:
        """Let go."""
        self._held.close()


class Journal(JournalFileBackend):
    """Optuna's file of one record per line; whoever reads it learns where it is damaged."""

    def __init__(self, path: Path) -> None:
        super().__init__(str(path), lock_obj=JournalLock(path))
        self._path = path

    def read_logs(self, log_number_from: int) -> Generator[dict[str, Any], None, None]:
        """The records from this one on.

        Raises:
            OutputError: when a line is no record.
        """
        number = log_number_from
        if self._path.stat().st_size > _MOST_BYTES:
            raise _damaged(self._path, f": it is larger than {_MOST_BYTES:,} bytes")
        try:
            for log in super().read_logs(log_number_from):
                yield _checked(log)
                number += 1
        except (ValueError, RecursionError) as error:
            raise _damaged(self._path, f" in line {number + 1}: {error}") from error


def _checked(log: object) -> dict[str, Any]:
    if not isinstance(log, dict):
        raise ValueError("it holds no record")  # noqa: TRY004 - damage, as lines that are no JSON
    return log


def _mend(journal: Path) -> None:
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
        ConfigError: when the address can't be opened.
    """
    if sweep.storage is None:
        return _journal(folder.journal)
    try:
        return get_storage(sweep.storage)
    except Exception as error:  # of the database's driver, whichever it is
        reason = str(error).strip().splitlines()[0]
        message = f"can't be opened: {reason}"
        raise ConfigError(
            [Problem(key="sweep.storage", value=sweep.storage, has_value=True, message=message)]
        ) from error


def _journal(path: Path) -> JournalStorage:
    """Optuna's storage in a file: JSON alone, of which Optuna expects that it was written by itself.

    Raises:
        OutputError: when it is damaged.
    """
    try:
        return JournalStorage(Journal(path))
    except OutputError:
        raise
    except Exception as error:  # a record that lacks anything makes Optuna raise anything
        raise _damaged(path, f": {type(error).__name__}: {error}") from error


def _damaged(path: Path, why: str) -> OutputError:
    return OutputError(
        f"{path} is damaged{why}; move it away and go on: what the trials have reached stands in their folders, and "
        "the search is put together again from there"
    )


def study_name(sweep: SweepConfig, folder: SweepFolder) -> str:
    """Name of the study within its storage."""
    if sweep.study is not None:
        return sweep.study
    return _NAME_IN_OWN_FILE if sweep.storage is None else "/".join(folder.path.parts[-2:])


def open_study(
    sweep: SweepConfig, folder: SweepFolder, storage: BaseStorage, *, sampler: BaseSampler, pruner: BasePruner
) -> Study:
    """The study of a sweep, made where there is none.

    Raises:
        ConfigError: when it was begun for other goals.
    """
    optuna.logging.set_verbosity(optuna.logging.ERROR)  # what is worth telling of a trial, the table tells
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
