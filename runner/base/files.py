"""Writing files so that a reader, or a power cut, never meets a half-written one."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, Literal

from runner.base.errors import OutputError

_CHUNK_BYTES = 1 << 20
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
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)
        sync_folder(path.parent)


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
                self._temporary.replace(self._path)
            finally:
                self._temporary.unlink(missing_ok=True)
            sync_folder(self._path.parent)


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
    """Give a complete file its name, durably; never over another file that has come there meanwhile.

    Raises:
        OutputError: when the name is taken by now, or can't be given.
    """
    with named_write_errors(path):
        sync_file(temporary)
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
        sync_folder(path.parent)


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
