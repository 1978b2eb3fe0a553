"""Reads zip and tar archives without trusting them: each name, kind and size is judged before anything is written.

Nothing is ever written under a name of the archive's own, so none can lead out of the output folder; such names are
refused all the same, because an archive that has them is not what it seems.
"""

from __future__ import annotations

import bz2
import errno
import gzip
import lzma
import re
import stat
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Container, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from runner.base.errors import InvalidDatasetError
from runner.data.sources.index import told

CHUNK_BYTES = 1 << 20
_BLOCK_BYTES = 512
# More than any header with its extended records; a header that claims more is an attack on memory.
_MAX_HEADER_BYTES = 1 << 20
_DRIVE = re.compile(r"[A-Za-z]:")
_GIB = 1 << 30
# What the libraries raise for damaged archives, which document none of it.
_DAMAGES = (
    *(zipfile.BadZipFile, zipfile.LargeZipFile, tarfile.TarError, zlib.error, lzma.LZMAError, struct.error),
    *(EOFError, RuntimeError, UnicodeError, OSError),
)


@dataclass(frozen=True, kw_only=True)
class Limits:
    """How much an archive may hold."""

    max_expansion: float
    """Times its own size."""
    max_unpacked_gib: float


@dataclass(frozen=True)
class Member:
    """A file in an archive."""

    name: str
    """Its path with `/` between the parts, none of them empty, `.` or `..`."""
    num_bytes: int
    """Its size when unpacked."""


Chunks = Iterator[bytes]


class _Stream(Protocol):
    """What is read here: the part that all the libraries' files have in common."""

    def read(self, size: int, /) -> bytes: ...
    def close(self) -> None: ...


@dataclass
class _Judge:
    """Refuses an archive by its members' names and kinds, and by what they add up to."""

    path: Path
    limits: Limits
    num_bytes: int = 0
    names: set[str] = field(default_factory=set)

    def judge(self, name: str, num_bytes: int, kind: str | None) -> Member:
        """Take one more file.

        Args:
            name: as the archive has it.
            num_bytes: its size when unpacked, as the archive claims; no more is ever read.
            kind: what it is, if it is no ordinary file.
        """
        if name.startswith(("/", "\\")) or _DRIVE.match(name):
            raise self.refusal(name, "is an absolute path")
        parts = [part for part in name.split("/") if part not in ("", ".")]
        if ".." in parts:
            raise self.refusal(name, "leads out of its folder with `..`")
        if kind is not None:
            raise self.refusal(name, f"is {kind}, where only files and folders are taken")
        cleaned = "/".join(parts)
        if cleaned in self.names:
            raise self.refusal(name, "is there twice, and which one is meant can't be told")
        self.names.add(cleaned)
        self._add(num_bytes)
        return Member(cleaned, num_bytes)

    def _add(self, num_bytes: int) -> None:
        self.num_bytes += num_bytes
        own = self.path.stat().st_size
        if self.num_bytes > self.limits.max_expansion * own:
            raise InvalidDatasetError(
                f"input = {self.path}: unpacks to more than {self.limits.max_expansion:g} times its own {own:,} bytes, "
                "as a decompression bomb does; if you trust it, raise max_expansion"
            )
        if self.num_bytes > self.limits.max_unpacked_gib * _GIB:
            raise InvalidDatasetError(
                f"input = {self.path}: unpacks to more than {self.limits.max_unpacked_gib:g} GiB; if that is right, "
                "raise max_unpacked_gib"
            )

    def refusal(self, name: str, reason: str) -> InvalidDatasetError:
        return InvalidDatasetError(f"input = {self.path}: the member {told(name)} {reason}; nothing was unpacked")


@contextmanager
def _damage_named(path: Path) -> Iterator[None]:
    """What the libraries raise for damaged archives, as one named error."""
    try:
        yield
    except _DAMAGES as error:
        raise _damaged(path, error) from error


def _damaged(path: Path, error: Exception) -> InvalidDatasetError:
    if isinstance(error, UnicodeError):
        return InvalidDatasetError(
            f"input = {path}: a file name can't be read as text ({error}); say how names are encoded, such as "
            "encoding=cp437 or encoding=gbk"
        )
    reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error) or type(error).__name__
    # A seek to where a damaged archive points is an invalid argument; other errors with a number are the machine's.
    if isinstance(error, OSError) and error.errno not in (None, errno.EINVAL):
        return InvalidDatasetError(f"input = {path}: the archive can't be read: {reason}")
    return InvalidDatasetError(f"input = {path}: the archive is damaged, cut off or of an unknown kind: {reason}")


def list_zip(path: Path, encoding: str, limits: Limits) -> list[Member]:
    """The files of a zip archive.

    Args:
        path: the archive.
        encoding: of names that are not marked as UTF-8.
        limits: how much it may hold.

    Raises:
        InvalidDatasetError: it is damaged, encrypted, unsafe or too large.
    """
    with _damage_named(path), zipfile.ZipFile(path, metadata_encoding=encoding) as archive:
        return [member for _, member in _judged_zip(archive, _Judge(path, limits))]


def read_zip(path: Path, encoding: str, limits: Limits, wanted: Container[str]) -> Iterator[tuple[str, Chunks]]:
    """Name and content of the wanted files; each content is to be read before the next file is asked for."""
    with _damage_named(path):
        archive = zipfile.ZipFile(path, metadata_encoding=encoding)
    with archive:
        for info, member in _judged_zip(archive, _Judge(path, limits)):
            if member.name in wanted:
                with _damage_named(path):
                    stream = archive.open(info)
                with stream:
                    yield member.name, _chunks(path, stream)


def _judged_zip(archive: zipfile.ZipFile, judge: _Judge) -> Iterator[tuple[zipfile.ZipInfo, Member]]:
    for info in archive.infolist():
        if info.is_dir():
            continue
        if info.flag_bits & 1:
            raise judge.refusal(info.filename, "is encrypted; unpack the archive yourself and import the folder")
        # The upper half holds Unix's mode, where the archive was made on Unix; 0 where nothing is known.
        kind = stat.S_IFMT(info.external_attr >> 16)
        is_file = kind in (0, stat.S_IFREG)
        what = None if is_file else "a link" if kind == stat.S_IFLNK else "a device or the like"
        # Some programs on Windows write backslashes.
        yield info, judge.judge(info.filename.replace("\\", "/"), info.file_size, what)


def list_tar(path: Path, encoding: str, limits: Limits) -> list[Member]:
    """The files of a tar archive, compressed or not; reads all of it. As :func:`list_zip`."""
    return [member for _, member, _ in _judged_tar(path, encoding, limits)]


def read_tar(path: Path, encoding: str, limits: Limits, wanted: Container[str]) -> Iterator[tuple[str, Chunks]]:
    """As :func:`read_zip`."""
    for archive, member, info in _judged_tar(path, encoding, limits):
        if member.name in wanted:
            with _damage_named(path):
                stream = archive.extractfile(info)
            assert stream is not None, "an ordinary file"
            yield member.name, _chunks(path, stream)


def _judged_tar(path: Path, encoding: str, limits: Limits) -> Iterator[tuple[tarfile.TarFile, Member, tarfile.TarInfo]]:
    judge = _Judge(path, limits)
    with _damage_named(path):
        unpacked = _unpacked(path)
    with closing(unpacked):
        reader = _HeaderGuard(unpacked, path)
        with _damage_named(path):
            archive = tarfile.TarFile.open(  # type: ignore[call-overload]
                fileobj=reader, mode="r|", encoding=encoding, errors="surrogateescape"
            )
        while True:
            with _damage_named(path):
                info = archive.next()
            if info is None:
                break
            # tarfile remembers all members, kilobytes each.
            archive.members.clear()
            # From here to the next header the content of this member is read or skipped.
            reader.left = _allowance(info.size)
            if not info.isdir():
                yield archive, judge.judge(info.name, info.size, _special(info)), info
        if any(reader.tail):
            raise InvalidDatasetError(f"input = {path}: the archive is cut off: it has no end mark")


def _special(info: tarfile.TarInfo) -> str | None:
    if info.islnk() or info.issym():
        return "a link"
    if not info.isreg():
        return "a device or the like"
    return "a sparse file" if info.issparse() else None


def _allowance(num_bytes: int) -> int:
    return num_bytes + _MAX_HEADER_BYTES + 2 * tarfile.RECORDSIZE


class _HeaderGuard:
    """A stream that ends with an error where a header asks for more memory than any header needs."""

    def __init__(self, stream: _Stream, path: Path) -> None:
        self._stream = stream
        self._path = path
        self.left = _allowance(0)
        self.tail = b""
        """The last block that was read; at the end of a whole archive it holds zeros."""

    def read(self, size: int) -> bytes:
        data = self._stream.read(size)
        self.left -= len(data)
        if self.left < 0:
            raise InvalidDatasetError(
                f"input = {self._path}: a header of more than {_MAX_HEADER_BYTES:,} bytes, as no usual archive has"
            )
        self.tail = (self.tail + data)[-_BLOCK_BYTES:]
        return data


def _unpacked(path: Path) -> _Stream:
    with path.open("rb") as file:
        magic = file.read(6)
    if magic.startswith(b"\x1f\x8b"):
        return gzip.open(path)
    if magic.startswith(b"BZh"):
        return bz2.open(path)
    if magic.startswith(b"\xfd7zXZ\x00"):
        return lzma.open(path)
    return path.open("rb")


def _chunks(path: Path, stream: _Stream) -> Chunks:
    while True:
        with _damage_named(path):
            chunk = stream.read(CHUNK_BYTES)
        if not chunk:
            return
        yield chunk
