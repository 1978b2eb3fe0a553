"""Caches the index of a large folder in a file, for as long as the folder is unchanged.

A cached index is used only if the folder, and each folder below it, has the inode and times that it had at the scan:
adding, removing or renaming an entry changes the times of its folder. This takes one `stat` per folder, not per file.
The index then equals that of a new scan, with two exceptions:
- A link to a file whose target was removed since is listed; reading the image raises. (A folder with a link that was
  broken at the scan is not cached, because the target may appear later.)
- A file system may not update the times of folders.
A folder that was changed less than two seconds before the scan, or in the future, is not cached: within the clock's
granularity (2 s on FAT) a later change could leave the times as they are. An index holds names only. File sizes would
need a `stat` per image, and nothing cheap would show that they have changed.

An index is a safetensors file that is mapped into memory: all processes of a machine share one copy. Its modification
time is the day of its last use; writing an index removes those that were not used for 90 days.
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
from runner.base.reasons import reason_of
from runner.base.untrusted import open_regular, parse_json
from runner.data.sources.index import BROKEN_LINK, FolderIndex, LeftOut, Scan, scan, stamp_of

# Increase it when the meaning of a file changes, for instance the list of extensions. It is part of the file's name:
# files of another version are not found, and are removed after 90 days.
_VERSION = 2
# Smaller folders are listed fast enough.
MIN_IMAGES = 10_000
_NANOSECONDS_UNTIL_TRUSTED = 2 * 10**9
_MOST_SECONDS_TO_WAIT = 600.0
# An index that was not used for so long belongs to a folder that is gone or has changed since.
_SECONDS_UNTIL_FORGOTTEN = 90 * 24 * 3600.0
# The time of the last use is updated this rarely, so that reading seldom writes.
_SECONDS_BETWEEN_NOTES = 24 * 3600.0
# Errors of reading a file that is missing, damaged or of another program.
_UNREADABLE = (OSError, ValueError, LookupError, TypeError, ArithmeticError)


@dataclass(frozen=True, kw_only=True)
class MappedIndex(FolderIndex):
    """An index whose arrays are mapped from a file; other processes map the same file instead of getting a copy."""

    file: Path
    digest: str

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickled as file name and digest; if the file is gone, a new scan must have the same digest."""
        return _mapped_again, (self.file, self.digest, self.folder)


def load_or_scan(folder: str, *, key: str, cache: Path, may_keep: bool = True) -> tuple[FolderIndex, str | None]:
    """The index of a folder of class folders, from the cache if the folder is unchanged.

    Of several processes that start together one scans, and the others wait for its result.

    Args:
        folder: full path.
        key: the config key that names the folder, for messages.
        cache: folder of the cached indices; created if necessary.
        may_keep: whether a new index may be written; a cached one is used in any case.

    Returns:
        The index, and a sentence for the log if it could not be cached.

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
            with suppress(OSError):  # a read-only cache can still be used
                if time.time() - file.stat().st_mtime > _SECONDS_BETWEEN_NOTES:
                    os.utime(file)
            return kept, None
        with _one_process_at_a_time(file) as hindrance:
            # An index that another process has written meanwhile is read without the lock, by many processes at once.
            if _version(file) == version:
                index, note = _scanned(folder, key, file)
                break
    if note is not None or hindrance is None:
        return index, note
    return index, f"{key}: each process made the list of files for itself, as they could not take turns: {hindrance}"


def _scanned(folder: str, key: str, file: Path) -> tuple[FolderIndex, str | None]:
    """Scan the folder; cache a large index, and return it mapped from its file, so that processes share it."""
    begun_ns = time.time_ns()
    found = scan(folder, key=key)
    if len(found.index) < MIN_IMAGES or not _is_lasting(found, begun_ns):
        return found.index, None
    try:
        _write(file, found)
    except (OSError, OutputError) as error:
        return (
            found.index,
            f"{key}: the list of files can't be cached and is made anew at each start: {reason_of(error)}",
        )
    _remove_forgotten(file.parent)
    return _read_valid(file, folder) or found.index, None


def _version(file: Path) -> tuple[int, int] | None:
    """Identifies the content of a file, as each write replaces it; None if it does not exist."""
    try:
        found = file.stat()
    except OSError:
        return None
    return found.st_ino, found.st_ctime_ns


def _remove_forgotten(cache: Path) -> None:
    """A process that has mapped a file keeps its content after the removal."""
    for file in cache.glob("*.index"):
        with suppress(OSError):  # another user's file, or removed meanwhile
            if time.time() - file.stat().st_mtime > _SECONDS_UNTIL_FORGOTTEN:
                file.unlink()


def _name(folder: str) -> str:
    """Different for each folder on each machine, as machines may share a home folder but not their local disks."""
    try:
        stamp = stamp_of(os.fsencode(folder))
    except OSError:
        stamp = None  # the scan raises the error
    return hashlib.sha256(os.fsencode(folder) + repr((stamp, _VERSION)).encode()).hexdigest()[:32]


def _is_lasting(found: Scan, begun_ns: int) -> bool:
    newest = max(max(stamp.modified_ns, stamp.changed_ns) for stamp in found.stamps.values())
    has_broken_links = any(left_out.reason == BROKEN_LINK for left_out in found.index.left_out)
    return newest < begun_ns - _NANOSECONDS_UNTIL_TRUSTED and not has_broken_links


@contextmanager
def _one_process_at_a_time(file: Path) -> Iterator[str | None]:
    """Hold a lock; without one each process scans, with the same result. Yields the reason if there is no lock."""
    lock = file.with_suffix(".lock")
    with ExitStack() as stack:
        hindrance = None
        try:
            stack.enter_context(locked(lock, wait_seconds=_MOST_SECONDS_TO_WAIT))
            # If another process holds the lock by then, a third one may scan at the same time, with the same result.
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
    """The cached index of this folder; None if there is none, it is damaged, or the folder has changed."""
    try:
        index, stamps = _read(file)
        if index.folder != folder:
            return None
        directory = os.fsencode(folder)
        if all(stamp_of(os.path.join(directory, name)) == stamp for name, stamp in stamps.items()):  # noqa: PTH118
            return index
    except _UNREADABLE:  # or a folder was removed
        pass
    return None


def _read(file: Path) -> tuple[MappedIndex, dict[bytes, tuple[int, ...]]]:
    """The index in a file, with its stamps; raises any of _UNREADABLE for a damaged file.

    safetensors itself would copy the arrays. Their names and types are fixed here; those in the file don't count.
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
    """Of all fields of an index."""
    words = (len(index), index.folder, index.classes, index.left_out)
    digest = hashlib.blake2b(repr(words).encode(), digest_size=32)
    for part in (index.labels.data, index.offsets.data, index.paths):
        digest.update(part)
    return digest.hexdigest()


def _mapped_again(file: Path, digest: str, folder: str) -> FolderIndex:
    """Unpickle an index.

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
