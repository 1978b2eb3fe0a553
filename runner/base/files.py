"""Atomic and durable writing of files and folders, file locks, checksums."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import hashlib
import json
import os
import secrets
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, Literal

from runner.base.errors import OutputError
from runner.base.reasons import reason_of

# From fcntl.h and linux/fs.h.
_AT_FDCWD, _RENAME_EXCHANGE = -100, 2
_SECONDS_BETWEEN_TRIES = 0.05
_NO_LOCKS = frozenset({errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP})


@contextmanager
def named_write_errors(path: Path) -> Iterator[None]:
    """Raise an OSError within the block, in which `path` is written, as an :class:`OutputError` that names `path`."""
    try:
        yield
    except OSError as error:
        raise OutputError(
            f"{path} can't be written: {reason_of(error)}; free space or choose another folder"
        ) from error


def sync_folder(folder: Path) -> None:
    """fsync a folder: without this a rename in it can be lost in a power cut."""
    sync_file(folder)


def sync_file(path: Path) -> None:
    """fsync a file."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def temporary_beside(path: Path) -> Path:
    """A name in the same folder (so that a rename is atomic) that no other process uses; hidden."""
    return path.with_name(f".{path.name}.{os.getpid()}-{secrets.token_hex(3)}.tmp")


def lock_file(file: IO[bytes], operation: int, path: Path) -> None:
    """Take a flock(2) lock, which is released when the file is closed or this process ends.

    Args:
        file: the open lock file.
        operation: fcntl.LOCK_EX or LOCK_SH; with LOCK_NB it does not wait.
        path: of the file, for messages.

    Raises:
        BlockingIOError: another process holds the lock (with LOCK_NB).
        OutputError: the file system has no locks.
    """
    try:
        fcntl.flock(file, operation)
    except BlockingIOError:
        raise
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise
        raise OutputError(
            f"{path} lies on a file system without locks ({reason_of(error)}), by which a live process is told from a "
            "dead one; mount it with them (Lustre: -o flock; NFS 3: rpc.statd runs on both sides), or choose a folder "
            "elsewhere"
        ) from error


@contextmanager
def locked(path: Path, *, wait_seconds: float = 0.0) -> Iterator[None]:
    """Hold an exclusive lock on a lock file, which is created if missing, within the block.

    Args:
        path: the lock file.
        wait_seconds: how long to wait for another process that holds it; may be infinite.

    Raises:
        BlockingIOError: another process still holds it after that time.
        OutputError: the file can't be created, or the file system has no locks.
    """
    with named_write_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        file = path.open("ab")
    with file:
        deadline = time.monotonic() + wait_seconds
        while True:
            try:
                lock_file(file, fcntl.LOCK_EX | fcntl.LOCK_NB, path)
                break
            except BlockingIOError as error:
                if time.monotonic() >= deadline:
                    raise BlockingIOError(error.errno, "another process holds this lock", str(path)) from error
            time.sleep(_SECONDS_BETWEEN_TRIES)
        yield


def write_atomic(path: Path, content: str | bytes) -> None:
    """Replace a file as a whole: temporary name, fsync, rename.

    Lone surrogates (bytes of file names that are not UTF-8) are written as escapes.

    Raises:
        OutputError: when the folder is missing or read-only, or the disk is full; the old file is intact then.
    """
    data = content.encode(errors="backslashreplace") if isinstance(content, str) else content
    temporary = temporary_beside(path)
    with named_write_errors(path):
        try:
            _write_durably(temporary, "xb", data)
            replace(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)


class ReservedFile:
    """Disk space reserved for replacing a file once, even if the disk is full by then."""

    def __init__(self, path: Path, num_bytes: int) -> None:
        """Reserve the space.

        Args:
            path: the file that will be replaced.
            num_bytes: bytes to reserve; larger content needs free space for the rest.

        Raises:
            OutputError: the disk is full already, or the folder can't be written.
        """
        self._path = path
        self._temporary = temporary_beside(path)
        with named_write_errors(path):
            try:
                _write_durably(self._temporary, "xb", bytes(num_bytes))
            except OSError:
                self._temporary.unlink(missing_ok=True)
                raise

    def replace_file(self, content: bytes) -> None:
        """Replace the file, which uses the reservation up.

        Raises:
            OutputError: when that fails; the old file is intact then.
        """
        with named_write_errors(self._path):
            try:
                _write_durably(self._temporary, "r+b", content)
                replace(self._temporary, self._path)
            finally:
                self._temporary.unlink(missing_ok=True)


def _write_durably(path: Path, mode: Literal["xb", "r+b"], content: bytes) -> None:
    with path.open(mode) as file:
        file.write(content)
        file.truncate()
        file.flush()
        os.fsync(file.fileno())


def check_new_file(path: Path) -> None:
    """Check that a new file can be created here; leaves nothing behind.

    Raises:
        OutputError: when it exists already, or its folder is missing or read-only.
    """
    if os.path.lexists(path):
        raise _exists(path)
    with named_write_errors(path):
        probe = temporary_beside(path)
        probe.touch(exist_ok=False)
        probe.unlink()


def write_new(path: Path, content: bytes, *, is_executable: bool = False) -> None:
    """Write a new file atomically.

    Raises:
        OutputError: the path exists, the folder is read-only, or the disk is full.
    """
    temporary = temporary_beside(path)
    with named_write_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with temporary.open("xb") as file:
                file.write(content)
            if is_executable:  # for those who may read it
                mode = temporary.stat().st_mode
                temporary.chmod(mode | (mode & 0o444) >> 2)
            publish(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)


def publish(temporary: Path, path: Path) -> None:
    """Rename a complete temporary file or folder to a new name, durably; an existing file is never replaced.

    The files in a folder have been fsynced by the caller. An empty folder at `path` is replaced.

    Raises:
        OutputError: when `path` exists, or the rename fails.
    """
    with named_write_errors(path):
        if temporary.is_dir():
            try:
                temporary.rename(path)  # fails over a folder that is not empty
            except OSError as error:
                if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
                    raise
                raise _exists(path) from error
        else:
            sync_file(temporary)
            try:
                path.hardlink_to(temporary)  # unlike a rename, fails over an existing file
            except FileExistsError as error:
                raise _exists(path) from error
            except OSError:
                # Some file systems have no links.
                if os.path.lexists(path):
                    raise _exists(path) from None
                temporary.rename(path)
            temporary.unlink(missing_ok=True)
        sync_folder(path.parent)


def replace(temporary: Path, path: Path) -> None:
    """Rename a complete, fsynced file or folder over `path` in one step, and delete what was there.

    A folder can't be renamed over another one, so the two names are exchanged, which Linux does atomically. Where the
    system or the file system can't, the old folder is renamed to a hidden name first; a process that is killed at this
    moment leaves it under that name.

    Raises:
        OSError: when the rename fails; `path` is unchanged then.
    """
    if not temporary.is_dir() or not path.is_dir():
        temporary.replace(path)
    elif not _exchange(temporary, path):
        aside = temporary_beside(path)
        path.rename(aside)
        temporary.rename(path)
        temporary = aside
    sync_folder(path.parent)
    if temporary.is_dir():
        shutil.rmtree(temporary, ignore_errors=True)


def _exchange(one: Path, other: Path) -> bool:
    """Exchange two names atomically, see renameat2(2); False where the system can't."""
    rename = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if rename is None:
        return False
    if rename(_AT_FDCWD, os.fsencode(one), _AT_FDCWD, os.fsencode(other), _RENAME_EXCHANGE) == 0:
        return True
    number = ctypes.get_errno()
    if number in (errno.ENOSYS, errno.EINVAL, errno.EOPNOTSUPP):
        return False
    raise OSError(number, os.strerror(number), str(other))


def _exists(path: Path) -> OutputError:
    return OutputError(f"{path}: already exists and is never overwritten; remove it, or choose another")


def as_json(value: Any) -> bytes:  # noqa: ANN401 - whatever JSON can hold
    """Indented JSON; raises ValueError for NaN and infinity, which JSON does not have."""
    return (json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n").encode(errors="backslashreplace")


def write_json(path: Path, value: Any) -> None:  # noqa: ANN401 - whatever JSON can hold
    """Replace a JSON file atomically; see :func:`as_json`."""
    write_atomic(path, as_json(value))


def append_line(path: Path, line: str) -> None:
    """Append one line and fsync.

    Raises:
        OutputError: when it can't be written.
    """
    with named_write_errors(path), path.open("a", encoding="utf-8") as file:
        file.write(line + "\n")
        file.flush()
        os.fsync(file.fileno())


def sha256_of(path: Path) -> str:
    """SHA-256 of a file's content, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
