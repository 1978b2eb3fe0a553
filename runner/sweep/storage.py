"""Where Optuna keeps a search: a file in the folder of the sweep, or any address."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

import optuna
from optuna.exceptions import StorageInternalError
from optuna.pruners import BasePruner
from optuna.samplers import BaseSampler
from optuna.storages import BaseStorage, JournalStorage, get_storage
from optuna.storages.journal import JournalFileBackend, JournalFileOpenLock
from optuna.study import Study

from runner.errors import ConfigError, Problem
from runner.schema.sweep import SweepConfig
from runner.sweep.folder import SweepFolder

STORAGE_ERRORS = (StorageInternalError, OSError)
_NAME_IN_OWN_FILE = "sweep"
_LINE_END = b"\n"


class JournalLock(JournalFileOpenLock):
    """A lock that dies with its holder; those that Optuna brings are files, which a killed process leaves behind."""

    def __init__(self, journal: Path) -> None:
        super().__init__(str(journal), grace_period=None)
        self._journal = journal
        self._descriptor: int | None = None

    def acquire(self) -> bool:
        """Wait for the lock, and take away a line that a power cut has left half-written."""
        self._descriptor = os.open(
            self._journal.with_name(f".{self._journal.name}.lock"), os.O_RDWR | os.O_CREAT, 0o666
        )
        fcntl.flock(self._descriptor, fcntl.LOCK_EX)
        _mend(self._journal)
        return True

    def release(self) -> None:
        """Let go."""
        assert self._descriptor is not None, "acquired before"
        os.close(self._descriptor)
        self._descriptor = None


def _mend(journal: Path) -> None:
    if not journal.is_file():
        return
    with journal.open("r+b") as file:
        size = file.seek(0, os.SEEK_END)
        if size == 0:
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
        backend = JournalFileBackend(str(folder.journal), lock_obj=JournalLock(folder.journal))
        return JournalStorage(backend)
    try:
        return get_storage(sweep.storage)
    except Exception as error:  # of the database's driver, whichever it is
        reason = str(error).strip().splitlines()[0]
        message = f"can't be opened: {reason}"
        raise ConfigError(
            [Problem(key="sweep.storage", value=sweep.storage, has_value=True, message=message)]
        ) from error


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
