"""Writing files so that a reader, or a power cut, never meets a half-written one."""

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

_CHUNK_BYTES = 1 << 20
# From fcntl.h and linux/fs.h.
_AT_FDCWD, _RENAME_EXCHANGE = -100, 2
_SECONDS_BETWEEN_TRIES = 0.05
_NO_LOCKS = frozenset({errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP})


@contextmanager
def named_write_errors(path: Path) -> Iterator[None]:
    """Turn a failure of the file system while `path` is written into an :class:`OutputError` that names it."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        raise OutputError(f"{path} can't be written: {reason}; free space or choose another folder") from error


def sync_folder(folder: Path) -> None:
    """Make the names in a folder durable; without this a rename can be lost in a power cut."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_file(path: Path) -> None:
    """Make the content of a file durable."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def temporary_beside(path: Path) -> Path:
    """A name in the same folder (so that a rename is atomic) that no other process uses; hidden."""
    return path.with_name(f".{path.name}.{os.getpid()}-{secrets.token_hex(3)}.tmp")


def lock_file(file: IO[bytes], operation: int, path: Path) -> None:
    """Take a lock that the end of this process gives back.

    Args:
        file: that bears it, open for as long as it is held.
        operation: fcntl.LOCK_EX, LOCK_SH, with LOCK_NB not to wait.
        path: what is locked, for messages.

    Raises:
        BlockingIOError: another process holds it, and it is not to be waited for.
        OutputError: the file system knows no locks.
    """
    try:
        fcntl.flock(file, operation)
    except BlockingIOError:
        raise
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise
        raise OutputError(
            f"{path} lies on a file system without locks ({error.strerror}), by which a live process is told from a "
            "dead one; mount it with them (Lustre: -o flock; NFS 3: rpc.statd runs on both sides), or choose a folder "
            "elsewhere"
        ) from error


@contextmanager
def locked(path: Path, *, wait_seconds: float = 0.0) -> Iterator[None]:
    """Hold a lock file, made if need be, for as long as the block runs and this process lives.

    Args:
        path: the lock file.
        wait_seconds: how long to wait for another process that holds it; may be infinite.

    Raises:
        BlockingIOError: another process holds it for longer.
        OutputError: it can't be written, or the file system knows no locks.
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

    What UTF-8 can't say, such as a byte in a file name that is no UTF-8, is written as its escape.

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
    """Room on the disk to replace a file as a whole once more, when the disk is full by then."""

    def __init__(self, path: Path, num_bytes: int) -> None:
        """Take the room.

        Args:
            path: the file that is to be replaced.
            num_bytes: its size then, at most; what is beyond finds room only where the disk has some.

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

    def become(self, content: bytes) -> None:
        """Replace the file; the room is used up.

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
    """Refuse early what can't be written as a new file; leaves nothing behind.

    Raises:
        OutputError: when it exists already, or its folder is missing or read-only.
    """
    if os.path.lexists(path):
        raise _taken(path)
    with named_write_errors(path):
        probe = temporary_beside(path)
        probe.touch(exist_ok=False)
        probe.unlink()


def write_new(path: Path, content: bytes) -> None:
    """Write a file as a whole where there is none yet.

    Raises:
        OutputError: something of this name is there, the folder is read-only, or the disk is full.
    """
    temporary = temporary_beside(path)
    with named_write_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with temporary.open("xb") as file:
                file.write(content)
            publish(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)


def publish(temporary: Path, path: Path) -> None:
    """Give a complete file or folder its name, durably; never over something else that has come there meanwhile.

    The files of a folder have been made durable before. An empty folder of that name is replaced.

    Raises:
        OutputError: when the name is taken by now, or can't be given.
    """
    with named_write_errors(path):
        if temporary.is_dir():
            _rename_folder(temporary, path)
        else:
            sync_file(temporary)
            _link_file(temporary, path)
        sync_folder(path.parent)


def _rename_folder(temporary: Path, path: Path) -> None:
    try:
        temporary.rename(path)  # fails where a folder is that is not empty
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
            raise
        raise _taken(path) from error


def _link_file(temporary: Path, path: Path) -> None:
    try:
        # Unlike a rename it fails where something is.
        path.hardlink_to(temporary)
    except FileExistsError as error:
        raise _taken(path) from error
    except OSError:
        # Some file systems have no links.
        if os.path.lexists(path):
            raise _taken(path) from None
        temporary.rename(path)
    temporary.unlink(missing_ok=True)


def replace(temporary: Path, path: Path) -> None:
    """Give a complete and durable file or folder its name in one step; what had the name until then is gone afterwards.

    A folder can't be renamed over another one, so the two exchange their names, which Linux can do in one step. Where
    the system or the file system can't, the old folder has a hidden name beside it for a moment: a process that is
    killed in this moment leaves it there.

    Raises:
        OSError: when the name can't be given; what has it keeps it.
    """
    if not temporary.is_dir() or not path.is_dir():
        temporary.replace(path)
    elif not _exchanged(temporary, path):
        aside = temporary_beside(path)
        path.rename(aside)
        temporary.rename(path)
        temporary = aside
    sync_folder(path.parent)
    if temporary.is_dir():
        shutil.rmtree(temporary, ignore_errors=True)


def _exchanged(one: Path, other: Path) -> bool:
    """Whether two names could be exchanged in one step; see renameat2(2)."""
    rename = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if rename is None:
        return False
    if rename(_AT_FDCWD, os.fsencode(one), _AT_FDCWD, os.fsencode(other), _RENAME_EXCHANGE) == 0:
        return True
    number = ctypes.get_errno()
    if number in (errno.ENOSYS, errno.EINVAL, errno.EOPNOTSUPP):
        return False
    raise OSError(number, os.strerror(number), str(other))


def _taken(path: Path) -> OutputError:
    return OutputError(f"{path}: already exists and is never overwritten; remove it, or choose another")


def as_json(value: Any) -> bytes:  # noqa: ANN401 - whatever JSON can hold
    """JSON, indented for people; not-a-number is refused, since JSON has none."""
    return (json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n").encode(errors="backslashreplace")


def write_json(path: Path, value: Any) -> None:  # noqa: ANN401 - whatever JSON can hold
    """Replace a JSON file as a whole; see :func:`as_json`."""
    write_atomic(path, as_json(value))


def append_line(path: Path, line: str) -> None:
    """Add one line to a log of lines and make it durable.

    Raises:
        OutputError: when it can't be written.
    """
    with named_write_errors(path), path.open("a", encoding="utf-8") as file:
        file.write(line + "\n")
        file.flush()
        os.fsync(file.fileno())


def sha256_of(path: Path) -> str:
    """SHA-256 of a file's content, in hexadecimal."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()
