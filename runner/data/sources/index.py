"""Lists the images of a folder of class folders, without opening them, and formats paths for messages."""

from __future__ import annotations

import errno
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from runner.base.errors import InvalidDatasetError, NotLabeledDatasetError
from runner.base.reasons import reason_of
from runner.base.untrusted import printable

IMAGE_EXTENSIONS = ("jpg", "jpeg", "png", "ppm", "pgm", "bmp", "tif", "tiff", "webp")
_IMAGE_EXTENSIONS = frozenset(extension.encode() for extension in IMAGE_EXTENSIONS)
SYSTEM_NAMES = frozenset({b"thumbs.db", b"desktop.ini", b"__macosx"})
# Threads overlap the latencies of a network file system.
_NUM_THREADS = 8
_MAX_EXAMPLES = 3
_INT64_MAX = (1 << 63) - 1
_MAX_NAMES = 8
_MAX_NAME_CHARACTERS = 255
# A few folders that link to each other contain any number of paths.
_MAX_DEPTH = 64
_MAX_VISITS = 100

HIDDEN = "hidden"
SYSTEM = "of an operating system"
NO_IMAGE = "without an image extension"
NO_CLASS = "outside the class folders"
BROKEN_LINK = "broken links"
LINK_LOOP = "links back to a folder around them"
SPECIAL = "neither file nor folder"


@dataclass(frozen=True)
class LeftOut:
    """The number of entries that were left out for one reason, and the first of them."""

    reason: str
    count: int
    examples: tuple[str, ...]

    def __str__(self) -> str:
        examples = ", ".join(self.examples) + (", …" if self.count > len(self.examples) else "")
        return f"{self.count} {self.reason} ({examples})"


@dataclass(frozen=True, kw_only=True)
class FolderIndex:
    """The images of one folder of class folders, in a form that scales to millions of images and many processes.

    The paths are concatenated in one buffer, which loader processes share with the process that forked them; reference
    counting would copy every page of a list of a million strings.
    """

    folder: str
    """Full path of the folder that holds the class folders."""
    classes: tuple[str, ...]
    """Names of the class folders, in the order of their UTF-8 bytes; empty ones too."""
    labels: npt.NDArray[np.int64]
    """Index into `classes` of each image, shape (N,)."""
    paths: bytes | memoryview
    """Concatenated paths of all images relative to `folder` (those of a CSV file may be absolute); of a folder, sorted
    by their bytes within each class."""
    offsets: npt.NDArray[np.int64]
    """The path of image i is paths[offsets[i]:offsets[i + 1]]; shape (N + 1,)."""
    left_out: tuple[LeftOut, ...]
    """Entries of the folder that are not used."""

    def __len__(self) -> int:
        return len(self.labels)

    def path(self, image: int) -> str:
        """Full path of this image; bytes that are not UTF-8 are surrogates (PEP 383), as for open()."""
        path = bytes(self.paths[self.offsets[image] : self.offsets[image + 1]])
        return os.path.join(self.folder, os.fsdecode(path))  # noqa: PTH118 - a million times an epoch

    def empty_classes(self) -> tuple[str, ...]:
        """Names of the class folders without an image."""
        counts = np.bincount(self.labels, minlength=len(self.classes))
        return tuple(name for name, count in zip(self.classes, counts, strict=True) if count == 0)


class Stamp(NamedTuple):
    """Identity and times of a folder, which change with its list of entries."""

    inode: int
    modified_ns: int
    changed_ns: int


@dataclass(frozen=True)
class Scan:
    """An index, and the stamps of all folders below its folder, by their relative path."""

    index: FolderIndex
    stamps: dict[bytes, Stamp]


@dataclass
class _Aside:
    """Counts the entries that are left out, by reason."""

    counts: Counter[str] = field(default_factory=Counter)
    examples: dict[str, list[str]] = field(default_factory=dict)

    def put(self, reason: str, path: bytes) -> None:
        self.counts[reason] += 1
        examples = self.examples.setdefault(reason, [])
        # The first ones by name, so that the message does not depend on the order of the file system.
        examples.append(printable_path(path))
        examples.sort()
        del examples[_MAX_EXAMPLES:]

    def add(self, other: _Aside) -> None:
        for reason, count in other.counts.items():
            self.counts[reason] += count
            self.examples[reason] = sorted([*self.examples.get(reason, []), *other.examples[reason]])[:_MAX_EXAMPLES]

    def summary(self) -> tuple[LeftOut, ...]:
        return tuple(
            LeftOut(reason, count, tuple(self.examples[reason])) for reason, count in sorted(self.counts.items())
        )


@dataclass
class _Found:
    """The entries below one class folder; one thread lists one class folder."""

    paths: list[bytes] = field(default_factory=list)
    stamps: dict[bytes, Stamp] = field(default_factory=dict)
    aside: _Aside = field(default_factory=_Aside)
    visits: Counter[tuple[int, int]] = field(default_factory=Counter)
    """How often each folder, by device and inode, was visited; more than once only by links."""


def path_text(path: bytes | str) -> str:
    """A path as text for a file of results; bytes that are not UTF-8 are written as \\xNN."""
    try:
        return os.fsencode(path).decode("utf-8", "backslashreplace")
    except UnicodeEncodeError:  # a lone surrogate of JSON, which is in no file's name
        return str(path).encode("utf-8", "backslashreplace").decode()


def is_image_name(name: str) -> bool:
    """Whether a file of this name is listed as an image."""
    _, dot, extension = name.rpartition(".")
    return bool(dot) and extension.lower() in IMAGE_EXTENSIONS


def printable_path(path: bytes | str) -> str:
    """A path for a message: on one line, and without control characters of a terminal."""
    return printable(path_text(path))


def name_list(names: Sequence[str]) -> str:
    """The first of these names for a message, and their number if there are more."""
    shortened = f", … ({len(names)} in all)" if len(names) > _MAX_NAMES else ""
    return ", ".join(printable(name[:_MAX_NAME_CHARACTERS]) for name in names[:_MAX_NAMES]) + shortened


def expected_tree(folder: str) -> str:
    """An example of a folder of class folders, for messages."""
    return f"expected:\n      {folder}/<class A>/1.jpg, 2.jpg, …\n      {folder}/<class B>/1.jpg, 2.jpg, …"


def scan_class_folders(folder: str, *, key: str) -> FolderIndex:
    """List all images below the class folders of a folder, at any depth.

    Hidden entries, those of operating systems, broken links, and files without one of IMAGE_EXTENSIONS (in upper or
    lower case) are left out and counted. Links to files and folders are followed, except to a folder that contains the
    link. The result depends on the names only, not on the order in which a file system lists them.

    Args:
        folder: full path of the folder that holds the class folders.
        key: the config key that names the folder, for messages.

    Raises:
        NotLabeledDatasetError: there are no class folders.
        InvalidDatasetError: the folder is missing, a file, empty or not readable; a class name is no UTF-8; there is
            no image at all.
    """
    return scan(folder, key=key).index


def scan(folder: str, *, key: str) -> Scan:
    """Like :func:`scan_class_folders`, with the stamps that show later whether the folder has changed."""
    aside = _Aside()
    try:
        own_stamp = stamp_of(os.fsencode(folder))
        class_folders, num_loose_images = _class_folders(os.fsencode(folder), aside)
        _check_class_folders(folder, key, class_folders, num_loose_images)
        with ThreadPoolExecutor(_NUM_THREADS) as threads:
            per_class = list(threads.map(lambda name: _list_class(os.fsencode(folder), name), class_folders))
    except OSError as error:
        raise _unreadable(error, folder, key) from error
    for found in per_class:
        aside.add(found.aside)
    index = _assemble(folder, class_folders, [found.paths for found in per_class], aside)
    if len(index) == 0:
        raise InvalidDatasetError(
            f"{key} = {folder}: no image in any of the {len(class_folders)} class folders"
            f"{describe_left_out(index, '; left out: ')}; "
            f"images are files that end in {', '.join(IMAGE_EXTENSIONS)}"
        )
    stamps = {b"": own_stamp}
    for found in per_class:
        stamps |= found.stamps
    return Scan(index, stamps)


def stamp_of(directory: bytes) -> Stamp:
    """Identity and times of a folder, which change with its list of entries.

    They also change if the folder is replaced, or if an archiver or a copy resets its modification time: no program can
    set the time of change (ctime).
    """
    return _stamp(os.stat(directory))  # noqa: PTH116 - bytes


def _stamp(status: os.stat_result) -> Stamp:
    # Some file systems use all 64 bits of an inode number.
    return Stamp(status.st_ino & _INT64_MAX, status.st_mtime_ns, status.st_ctime_ns)


def pack_paths(paths: Sequence[bytes]) -> tuple[bytes, npt.NDArray[np.int64]]:
    """Concatenated paths, and their offsets including the end, shape (N + 1,)."""
    lengths = np.fromiter(map(len, paths), np.int64, len(paths))
    return b"".join(paths), np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])


def scan_images(folder: str, *, key: str) -> tuple[list[str], tuple[LeftOut, ...]]:
    """List all images of a folder, at any depth, by the rules of :func:`scan_class_folders`.

    Args:
        folder: an existing folder.
        key: the config key that names the folder, for messages.

    Returns:
        Their paths relative to the folder, sorted by their bytes, and the entries that were left out.

    Raises:
        InvalidDatasetError: a folder can't be read.
    """
    found = _Found()
    try:
        paths = sorted(_walk(os.fsencode(folder), b"", frozenset(), found))
    except OSError as error:
        raise _unreadable(error, folder, key) from error
    return [os.fsdecode(path.removeprefix(b"/")) for path in paths], found.aside.summary()


def describe_left_out(index: FolderIndex, prefix: str) -> str:
    """The prefix and the entries that were left out; empty if there are none."""
    return prefix + ", ".join(map(str, index.left_out)) if index.left_out else ""


def _class_folders(folder: bytes, aside: _Aside) -> tuple[list[bytes], int]:
    names: list[bytes] = []
    num_loose_images = 0
    with os.scandir(folder) as entries:
        for entry in entries:
            reason = _reason_to_leave_out(entry)
            if reason is None and entry.is_dir():
                names.append(entry.name)
            else:
                num_loose_images += reason is None
                aside.put(reason or NO_CLASS, entry.name)
    return sorted(names), num_loose_images


def _check_class_folders(folder: str, key: str, class_folders: Sequence[bytes], num_loose_images: int) -> None:
    if not class_folders and num_loose_images:
        raise NotLabeledDatasetError(
            f"{key} = {folder}: holds images ({num_loose_images}), but no class folders: "
            f"without them no image has a label; {expected_tree(folder)}"
        )
    if not class_folders:
        with os.scandir(folder) as entries:
            is_empty = next(iter(entries), None) is None
        if is_empty:
            raise InvalidDatasetError(f"{key} = {folder}: the folder is empty; {expected_tree(folder)}")
        raise NotLabeledDatasetError(f"{key} = {folder}: no class folders and no images; {expected_tree(folder)}")
    for name in class_folders:
        try:
            name.decode("utf-8")
        except UnicodeDecodeError as error:
            raise InvalidDatasetError(
                f"{key} = {folder}: the name of the class folder {printable_path(name)} is no UTF-8; rename it"
            ) from error


def _list_class(folder: bytes, name: bytes) -> _Found:
    found = _Found()
    found.paths = sorted(_walk(os.path.join(folder, name), name, frozenset(), found))  # noqa: PTH118 - bytes
    return found


def _walk(directory: bytes, relative: bytes, around: frozenset[tuple[int, int]], found: _Found) -> Iterator[bytes]:
    status, aside = os.stat(directory), found.aside  # noqa: PTH116 - bytes
    identity = (status.st_dev, status.st_ino)
    if identity in around:
        aside.put(LINK_LOOP, relative)
        return
    found.visits[identity] += 1
    if len(around) == _MAX_DEPTH:
        raise OSError(errno.ELOOP, f"folders lie more than {_MAX_DEPTH} deep in each other", directory)
    if found.visits[identity] > _MAX_VISITS:
        raise OSError(errno.ELOOP, f"links lead to this folder in more than {_MAX_VISITS} ways", directory)
    # Before the list is read, so that a change meanwhile makes the stamp outdated.
    found.stamps[relative] = _stamp(status)
    with os.scandir(directory) as entries:
        for entry in entries:
            path = relative + b"/" + entry.name
            reason = _reason_to_leave_out(entry)
            if reason is not None:
                aside.put(reason, path)
            elif entry.is_dir():
                yield from _walk(entry.path, path, around | {identity}, found)
            else:
                yield path


def _reason_to_leave_out(entry: os.DirEntry[bytes]) -> str | None:
    """Why this entry is left out; None for an image or a folder."""
    if entry.name.startswith(b"."):
        return HIDDEN
    if entry.name.lower() in SYSTEM_NAMES:
        return SYSTEM
    try:
        is_file = entry.is_file()
        if not is_file and entry.is_dir():
            return None
    except OSError as error:
        if error.errno == errno.ELOOP:
            return BROKEN_LINK
        raise
    if not is_file:
        return BROKEN_LINK if entry.is_symlink() else SPECIAL
    _, dot, extension = entry.name.rpartition(b".")
    return None if dot and extension.lower() in _IMAGE_EXTENSIONS else NO_IMAGE


def _assemble(
    folder: str, class_folders: Sequence[bytes], per_class: Sequence[Sequence[bytes]], aside: _Aside
) -> FolderIndex:
    counts = [len(paths) for paths in per_class]
    paths, offsets = pack_paths([path for paths in per_class for path in paths])
    return FolderIndex(
        folder=folder,
        classes=tuple(name.decode("utf-8") for name in class_folders),
        labels=np.repeat(np.arange(len(counts), dtype=np.int64), counts),
        paths=paths,
        offsets=offsets,
        left_out=aside.summary(),
    )


def _unreadable(error: OSError, folder: str, key: str) -> InvalidDatasetError:
    place = printable_path(error.filename) if error.filename else folder
    where = f"{key} = {folder}" + ("" if place == folder else f": {place}")
    match error.errno:
        case errno.ENOENT if place == folder:
            return InvalidDatasetError(f"{where}: there is no such folder; {expected_tree(folder)}")
        case errno.ENOTDIR if place == folder:
            return InvalidDatasetError(f"{where}: this is a file, not a folder; {expected_tree(folder)}")
        case _:
            return InvalidDatasetError(f"{where}: can't be read: {reason_of(error)}")
