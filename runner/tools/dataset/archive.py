"""Reads zip and tar archives without trusting them: names, kinds and sizes are checked before anything is written.

Files are never written under the names of the archive, so these can't lead out of the output folder; an archive with
such names is refused nevertheless, as a sign of an attack.
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
from runner.base.reasons.damage import archive_mistake
from runner.data.sources.index import printable_path

CHUNK_BYTES = 1 << 20
_BLOCK_BYTES = 512
# More than any usual header with its extended records; a larger one would exhaust memory.
_MAX_HEADER_BYTES = 1 << 20
_DRIVE = re.compile(r"[A-Za-z]:")
_GIB = 1 << 30
# Raised by the libraries for damaged archives; undocumented.
_DAMAGES = (
    *(zipfile.BadZipFile, zipfile.LargeZipFile, tarfile.TarError, zlib.error, lzma.LZMAError, struct.error),
    *(EOFError, RuntimeError, UnicodeError, OSError),
)


@dataclass(frozen=True, kw_only=True)
class Limits:
    """How large the content of an archive may be."""

    max_expansion: float
    """Unpacked bytes per byte of the archive."""
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
    """The methods that the file objects of zipfile, tarfile, gzip, bz2 and lzma have in common."""

    def read(self, size: int, /) -> bytes: ...
    def close(self) -> None: ...


@dataclass
class _Checker:
    """Checks names, kinds and total size of the members of an archive."""

    path: Path
    limits: Limits
    num_bytes: int = 0
    names: set[str] = field(default_factory=set)

    def check(self, name: str, num_bytes: int, kind: str | None) -> Member:
        """Check one more file.

        Args:
            name: as the archive has it.
            num_bytes: its size when unpacked, as the archive claims; no more is ever read.
            kind: what it is, if it is no regular file.

        Raises:
            InvalidDatasetError: it is unsafe, or the archive unpacks to too much.
        """
        if name.startswith(("/", "\\")) or _DRIVE.match(name):
            raise self.refusal(name, "is an absolute path")
        parts = [part for part in name.split("/") if part not in ("", ".")]
        if ".." in parts:
            raise self.refusal(name, "leads out of its folder by `..`")
        if kind is not None:
            raise self.refusal(name, f"is {kind}, but only files and folders are imported")
        cleaned = "/".join(parts)
        if cleaned in self.names:
            raise self.refusal(name, "is there twice, so it is unclear which one is meant")
        self.names.add(cleaned)
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
        return Member(cleaned, num_bytes)

    def refusal(self, name: str, reason: str) -> InvalidDatasetError:
        return InvalidDatasetError(
            f"input = {self.path}: the member {printable_path(name)} {reason}; nothing was unpacked"
        )


@contextmanager
def _damage_named(path: Path) -> Iterator[None]:
    """Turn the exceptions of the libraries into InvalidDatasetError."""
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
    reason = archive_mistake(error)
    # A damaged archive may make the library seek to an invalid position (EINVAL); other numbers are I/O errors.
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
        return [member for _, member in _checked_zip(archive, _Checker(path, limits))]


def read_zip(path: Path, encoding: str, limits: Limits, wanted: Container[str]) -> Iterator[tuple[str, Chunks]]:
    """Name and content of the wanted files; read each content before asking for the next file."""
    with _damage_named(path):
        archive = zipfile.ZipFile(path, metadata_encoding=encoding)
    with archive:
        for info, member in _checked_zip(archive, _Checker(path, limits)):
            if member.name in wanted:
                with _damage_named(path):
                    stream = archive.open(info)
                with stream:
                    yield member.name, _chunks(path, stream)


def _checked_zip(archive: zipfile.ZipFile, checker: _Checker) -> Iterator[tuple[zipfile.ZipInfo, Member]]:
    for info in archive.infolist():
        if info.is_dir():
            continue
        if info.flag_bits & 1:
            raise checker.refusal(info.filename, "is encrypted; unpack the archive yourself and import the folder")
        # The upper half holds the Unix mode, or 0 where the archive was not made on Unix.
        kind = stat.S_IFMT(info.external_attr >> 16)
        is_file = kind in (0, stat.S_IFREG)
        what = None if is_file else "a link" if kind == stat.S_IFLNK else "a device or the like"
        # Some programs on Windows write backslashes.
        yield info, checker.check(info.filename.replace("\\", "/"), info.file_size, what)


def list_tar(path: Path, encoding: str, limits: Limits) -> list[Member]:
    """The files of a tar archive, compressed or not, as :func:`list_zip`; reads the whole archive."""
    return [member for _, member, _ in _checked_tar(path, encoding, limits)]


def read_tar(path: Path, encoding: str, limits: Limits, wanted: Container[str]) -> Iterator[tuple[str, Chunks]]:
    """The same as :func:`read_zip`."""
    for archive, member, info in _checked_tar(path, encoding, limits):
        if member.name in wanted:
            with _damage_named(path):
                stream = archive.extractfile(info)
            assert stream is not None, "a regular file"
            yield member.name, _chunks(path, stream)


def _checked_tar(
    path: Path, encoding: str, limits: Limits
) -> Iterator[tuple[tarfile.TarFile, Member, tarfile.TarInfo]]:
    checker = _Checker(path, limits)
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
            # tarfile keeps all members in memory, kilobytes each.
            archive.members.clear()
            # Until the next header, the content of this member is read or skipped.
            reader.left = _allowance(info.size)
            if not info.isdir():
                yield archive, checker.check(info.name, info.size, _special(info)), info
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
    """A stream that raises where a header is larger than any usual one, before it fills the memory."""

    def __init__(self, stream: _Stream, path: Path) -> None:
        self._stream = stream
        self._path = path
        self.left = _allowance(0)
        self.tail = b""
        """The last block that was read: zeros at the end of a complete archive."""

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
