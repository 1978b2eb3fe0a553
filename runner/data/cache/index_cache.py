"""Keeps the index of a large folder in the cache folder, and uses it again for as long as it is true.

A kept index is used only where the folder, and each folder in it that was looked into, has the identity and times that
it had when it was listed: adding, removing or renaming an entry changes the times of the folder around it. Asking for
them is one `stat` per folder, not per file. So an index that is used says what a new scan would say, but for:
- a link to a file whose target has gone since: the image is listed, and named when it can't be read. Where a link was
  broken at the scan, nothing is kept, because its target may come.
- a file system that does not keep the times of its folders.
Nothing is kept of a folder that was changed less than two seconds before the scan, or in the future: within the
clock's granularity (2 s on FAT) a later change could leave the times as they are. What is in a file does not matter,
as an index holds names; for that reason it holds no sizes of files either, which nothing cheap could hold true, and
which cost a `stat` per image.

An index is a file in the format of safetensors that is mapped into memory: all processes of a machine that use it,
loaders too, share one copy. Its time of change says when it was last used, to the day; what was not used for 90 days is
removed when another index is kept.
"""

from __future__ import annotations

import hashlib
import json
import mmap
import os
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from safetensors.numpy import save

from runner.base.errors import InvalidDatasetError, OutputError
from runner.base.files import locked, write_atomic
from runner.base.untrusted import open_regular, parse_json
from runner.data.sources.index import BROKEN_LINK, FolderIndex, LeftOut, Scan, scan, stamp_of

# Raise it with whatever changes the meaning of a file, such as the list of extensions. It is part of the file's name:
# a file of another version is not found, and is removed once it is old.
_VERSION = 2
# Smaller folders are listed faster than anything else could be done.
MIN_IMAGES = 10_000
_NANOSECONDS_UNTIL_TRUSTED = 2 * 10**9
_MOST_SECONDS_TO_WAIT = 600.0
# An index that nobody has used for so long belongs to a folder that is gone or has changed since.
_SECONDS_UNTIL_FORGOTTEN = 90 * 24 * 3600.0
# Of a file that was used, so rarely is it noted: reading should not mean writing.
_SECONDS_BETWEEN_NOTES = 24 * 3600.0
# What the reading of a file raises that is missing, damaged or made by somebody else.
_UNREADABLE = (OSError, ValueError, LookupError, TypeError, ArithmeticError)


@dataclass(frozen=True, kw_only=True)
class MappedIndex(FolderIndex):
    """An index whose arrays lie in a file; other processes map the same file instead of getting a copy."""

    file: Path
    digest: str

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickled by the name of its file, and by the digest of what must be found should that be gone."""
        return _mapped_again, (self.file, self.digest, self.folder)


def load_or_scan(folder: str, *, key: str, cache: Path, may_keep: bool = True) -> tuple[FolderIndex, str | None]:
    """The index of a folder of class folders, from the cache where it is still true.

    Of several processes that start together one scans, and the others wait for what it has found.

    Args:
        folder: full path.
        key: the config key that names the folder, for messages.
        cache: where indices are kept; made if need be.
        may_keep: whether anything may be written there; else an index that is there is used, and no new one is kept.

    Returns:
        The index, and what the user should know where it could not be kept.

    Raises:
        InvalidDatasetError: see :func:`runner.data.sources.index.scan_class_folders`.
        NotLabeledDatasetError: likewise.
    """
    file = cache / f"{_name(folder)}.index"
    if not may_keep:
        return _read_valid(file, folder) or scan(folder, key=key).index, None
    while True:
        version = _version(file)
        kept = _read_valid(file, folder)
        if kept is not None:
            _note_use(file)
            return kept, None
        with _one_process_at_a_time(file) as hindrance:
            # What another has written meanwhile is looked at outside: hundreds of processes would do it one by one.
            if _version(file) == version:
                index, note = _scanned(folder, key, file)
                break
    if note is not None or hindrance is None:
        return index, note
    return index, f"{key}: each process made the list of files for itself, as they could not take turns: {hindrance}"


def _scanned(folder: str, key: str, file: Path) -> tuple[FolderIndex, str | None]:
    """List the folder and keep the index, if it is worth it; from the file then, so that all processes share it."""
    begun_ns = time.time_ns()
    found = scan(folder, key=key)
    if len(found.index) < MIN_IMAGES or not _is_lasting(found, begun_ns):
        return found.index, None
    try:
        _write(file, found)
    except (OSError, OutputError) as error:
        return found.index, f"{key}: the list of files can't be kept and is made anew at each start: {error}"
    _remove_forgotten(file.parent)
    return _read_valid(file, folder) or found.index, None


def _version(file: Path) -> tuple[int, int] | None:
    """Changes with each writing of a file; None where there is none."""
    try:
        found = file.stat()
    except OSError:
        return None
    return found.st_ino, found.st_ctime_ns


def _note_use(file: Path) -> None:
    with suppress(OSError):  # a cache that can't be written is used all the same
        if time.time() - file.stat().st_mtime > _SECONDS_BETWEEN_NOTES:
            os.utime(file)


def _remove_forgotten(cache: Path) -> None:
    """Of a file that another process has mapped, its content stays until that ends."""
    for file in cache.glob("*.index"):
        with suppress(OSError):  # of somebody else, or gone meanwhile: no reason for a run to fail
            if time.time() - file.stat().st_mtime > _SECONDS_UNTIL_FORGOTTEN:
                file.unlink()


def _name(folder: str) -> str:
    """Of its own for each folder on each machine: a home folder may be shared where local disks are not."""
    try:
        stamp = stamp_of(os.fsencode(folder))
    except OSError:
        stamp = None  # the scan will say why
    return hashlib.sha256(os.fsencode(folder) + repr((stamp, _VERSION)).encode()).hexdigest()[:32]


def _is_lasting(found: Scan, begun_ns: int) -> bool:
    newest = max(max(stamp.modified_ns, stamp.changed_ns) for stamp in found.stamps.values())
    has_broken_links = any(left_out.reason == BROKEN_LINK for left_out in found.index.left_out)
    return newest < begun_ns - _NANOSECONDS_UNTIL_TRUSTED and not has_broken_links


@contextmanager
def _one_process_at_a_time(file: Path) -> Iterator[str | None]:
    """Where there can be no lock, each process scans for itself, which is as right; yields what stood in the way."""
    lock = file.with_suffix(".lock")
    with ExitStack() as stack:
        hindrance = None
        try:
            stack.enter_context(locked(lock, wait_seconds=_MOST_SECONDS_TO_WAIT))
            # Should another process hold it by then, a third one would scan at the same time, which is as right.
            stack.callback(lock.unlink, missing_ok=True)
        except (OutputError, BlockingIOError) as error:
            hindrance = str(error)
        yield hindrance


def _write(file: Path, found: Scan) -> None:
    index = found.index
    arrays: dict[str, npt.NDArray[Any]] = {
        "labels": index.labels,
        "offsets": index.offsets,
        "paths": np.frombuffer(index.paths, np.uint8),
        "stamps": np.array(list(found.stamps.values()), np.int64),
        "directories": np.frombuffer(b"\0".join(found.stamps), np.uint8),
    }
    about = {
        "folder": index.folder,
        "classes": index.classes,
        "left_out": [[entry.reason, entry.count, entry.examples] for entry in index.left_out],
        "digest": _digest(index),
    }
    write_atomic(file, save(arrays, {"about": json.dumps(about)}))


def _read_valid(file: Path, folder: str) -> MappedIndex | None:
    """What is kept of this folder; None where there is nothing, or nothing that is true and whole."""
    try:
        index, stamps = _read(file)
        if index.folder != folder:
            return None
        directory = os.fsencode(folder)
        if all(stamp_of(os.path.join(directory, name)) == stamp for name, stamp in stamps.items()):  # noqa: PTH118
            return index
    except _UNREADABLE:  # or a folder is gone; in any case the data set is scanned again
        return None
    return None


def _read(file: Path) -> tuple[MappedIndex, dict[bytes, tuple[int, ...]]]:
    """What a file says; the caller names the errors of a damaged one.

    The library would copy the arrays into memory of this process. Which arrays there are, and of which type, is decided
    here and not by the file.
    """
    with open_regular(file) as opened:
        content = memoryview(mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ))
    start = 8 + int.from_bytes(content[:8], "little")
    header = parse_json(str(content[8:start], "utf-8"), str(file))
    about = parse_json(header["__metadata__"]["about"], str(file))

    def part(name: str) -> memoryview:
        begin, end = header[name]["data_offsets"]
        return content[start:][begin:end]

    index = MappedIndex(
        folder=about["folder"],
        classes=tuple(map(str, about["classes"])),
        labels=np.frombuffer(part("labels"), np.int64),
        paths=part("paths"),
        offsets=np.frombuffer(part("offsets"), np.int64),
        left_out=tuple(LeftOut(reason, count, tuple(examples)) for reason, count, examples in about["left_out"]),
        file=file,
        digest=about["digest"],
    )
    are_labels = 0 <= index.labels.min() <= index.labels.max() < len(index.classes)
    if not are_labels or len(index.offsets) != len(index) + 1 or _digest(index) != index.digest:
        raise ValueError(f"{file} is damaged")
    stamps = np.frombuffer(part("stamps"), np.int64).reshape(-1, 3).tolist()
    return index, dict(zip(bytes(part("directories")).split(b"\0"), map(tuple, stamps), strict=True))


def _digest(index: FolderIndex) -> str:
    """Of all that an index says."""
    words = (len(index), index.folder, index.classes, index.left_out)
    digest = hashlib.blake2b(repr(words).encode(), digest_size=32)
    for part in (index.labels.data, index.offsets.data, index.paths):
        digest.update(part)
    return digest.hexdigest()


def _mapped_again(file: Path, digest: str, folder: str) -> FolderIndex:
    """The same index in another process.

    Raises:
        InvalidDatasetError: its file was replaced or removed, and the folder has changed since.
    """
    with suppress(*_UNREADABLE):
        index, _ = _read(file)
        if index.digest == digest:
            return index
    scanned = scan(folder, key="data").index
    if _digest(scanned) != digest:
        raise InvalidDatasetError(f"{folder} was changed while processes were started; start again")
    return scanned
