"""The images of a folder of class folders: which there are, not what is in them. No image is opened here."""

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
from runner.base.untrusted import printable

IMAGE_EXTENSIONS = ("jpg", "jpeg", "png", "ppm", "pgm", "bmp", "tif", "tiff", "webp")
_IMAGE_EXTENSIONS = frozenset(extension.encode() for extension in IMAGE_EXTENSIONS)
SYSTEM_NAMES = frozenset({b"thumbs.db", b"desktop.ini", b"__macosx"})
# Waits of network file systems overlap.
_NUM_THREADS = 8
_MAX_EXAMPLES = 3
_INT64_MAX = (1 << 63) - 1
_MAX_NAMES = 8
_MAX_NAME_CHARACTERS = 255
# A few folders that link to each other make as many paths as anybody likes.
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
    """How many entries were left out for one reason, and the first of them."""

    reason: str
    count: int
    examples: tuple[str, ...]

    def __str__(self) -> str:
        shown = ", ".join(self.examples) + (", …" if self.count > len(self.examples) else "")
        return f"{self.count} {self.reason} ({shown})"


@dataclass(frozen=True, kw_only=True)
class FolderIndex:
    """The images of one folder of class folders, compact enough for millions and for many processes.

    The paths stand one after another in a single piece of memory: loader processes share it with the process that
    started them, where a list of a million strings would be copied page by page.
    """

    folder: str
    """Full path of the folder that holds the class folders."""
    classes: tuple[str, ...]
    """Names of the class folders, in the order of their UTF-8 bytes; empty ones too."""
    labels: npt.NDArray[np.int64]
    """Index into `classes` of each image, shape (N,)."""
    paths: bytes | memoryview
    """Paths of all images relative to `folder` (of a list, absolute ones too), one after another; of a folder, within a
    class in the order of their bytes."""
    offsets: npt.NDArray[np.int64]
    """Image i is called paths[offsets[i]:offsets[i + 1]]; shape (N + 1,)."""
    left_out: tuple[LeftOut, ...]
    """What stood in the folder and was not used."""

    def __len__(self) -> int:
        return len(self.labels)

    def path(self, image: int) -> str:
        """Full path of this image; bytes that are no UTF-8 as surrogates (PEP 383), as open() wants them."""
        path = bytes(self.paths[self.offsets[image] : self.offsets[image + 1]])
        return os.path.join(self.folder, os.fsdecode(path))  # noqa: PTH118 - a million times an epoch

    def empty_classes(self) -> tuple[str, ...]:
        """Names of the class folders without an image."""
        counts = np.bincount(self.labels, minlength=len(self.classes))
        return tuple(name for name, count in zip(self.classes, counts, strict=True) if count == 0)


class Stamp(NamedTuple):
    """Tells whether the entries of a folder are still the same."""

    inode: int
    modified_ns: int
    changed_ns: int


@dataclass(frozen=True)
class Scan:
    """An index, and the stamps of all folders that it depends on, by their path relative to its folder."""

    index: FolderIndex
    stamps: dict[bytes, Stamp]


@dataclass
class _Aside:
    """Collects what is left out."""

    counts: Counter[str] = field(default_factory=Counter)
    examples: dict[str, list[str]] = field(default_factory=dict)

    def put(self, reason: str, path: bytes) -> None:
        self.counts[reason] += 1
        examples = self.examples.setdefault(reason, [])
        # The first ones by name, so that the sentence is the same on every file system.
        examples.append(told(path))
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
    """What was found below one folder; each class folder is looked into by one thread."""

    paths: list[bytes] = field(default_factory=list)
    stamps: dict[bytes, Stamp] = field(default_factory=dict)
    aside: _Aside = field(default_factory=_Aside)
    visits: Counter[tuple[int, int]] = field(default_factory=Counter)
    """How often each folder, by device and inode, was looked into; more than once by links only."""


def shown(path: bytes | str) -> str:
    """A path as text, in a file of results: bytes that are no UTF-8 as \\xNN."""
    try:
        return os.fsencode(path).decode("utf-8", "backslashreplace")
    except UnicodeEncodeError:  # half a character, as JSON can hold it; no file is called so
        return str(path).encode("utf-8", "backslashreplace").decode()


def is_image_name(name: str) -> bool:
    """Whether a file of this name in a folder would be taken for an image."""
    _, dot, extension = name.rpartition(".")
    return bool(dot) and extension.lower() in IMAGE_EXTENSIONS


def told(path: bytes | str) -> str:
    """A path in a message: on one line, and without what a terminal would obey."""
    return printable(shown(path))


def some(names: Sequence[str]) -> str:
    """The first of these names in a message, and how many there are where that is not all."""
    shortened = f", … ({len(names)} in all)" if len(names) > _MAX_NAMES else ""
    return ", ".join(printable(name[:_MAX_NAME_CHARACTERS]) for name in names[:_MAX_NAMES]) + shortened


def expected_tree(folder: str) -> str:
    """What a folder of class folders looks like, as an example for messages."""
    return f"expected:\n      {folder}/<class A>/1.jpg, 2.jpg, …\n      {folder}/<class B>/1.jpg, 2.jpg, …"


def scan_class_folders(folder: str, *, key: str) -> FolderIndex:
    """Find all images below the class folders of a folder, however deep.

    Hidden entries, those of operating systems, broken links, and files without one of IMAGE_EXTENSIONS (in upper or
    lower case) are left out and counted. Links to files and folders are followed, but not back to where they came
    from. The result depends on the names alone, not on the order in which a file system lists them.

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
    """As :func:`scan_class_folders`, with what tells later whether it would still find the same."""
    aside = _Aside()
    try:
        own_stamp = stamp_of(os.fsencode(folder))
        class_folders, num_loose_images = _class_folders(os.fsencode(folder), aside)
        _check_class_folders(folder, key, class_folders, num_loose_images)
        with ThreadPoolExecutor(_NUM_THREADS) as threads:
            per_class = list(threads.map(lambda name: _look_into(os.fsencode(folder), name), class_folders))
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
    """What changes with a folder's list of entries: its identity and times. Also when another one is put in its place,
    or its modification time is set back, as archives and copies do: no program sets the time of change.
    """
    return _stamp(os.stat(directory))  # noqa: PTH116 - bytes


def _stamp(status: os.stat_result) -> Stamp:
    # Some file systems use all 64 bits of an inode number.
    return Stamp(status.st_ino & _INT64_MAX, status.st_mtime_ns, status.st_ctime_ns)


def packed(paths: Sequence[bytes]) -> tuple[bytes, npt.NDArray[np.int64]]:
    """Paths in one piece, and where each begins and the last ends, shape (N + 1,)."""
    lengths = np.fromiter(map(len, paths), np.int64, len(paths))
    return b"".join(paths), np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])


def scan_images(folder: str, *, key: str) -> tuple[list[str], tuple[LeftOut, ...]]:
    """Find all images of a folder, however deep, by the rules of :func:`scan_class_folders`.

    Args:
        folder: an existing folder.
        key: what names the folder, for messages.

    Returns:
        Their paths relative to the folder in the order of their bytes, and what was left out.

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
    """What was left out, in one phrase after the prefix; empty where nothing was."""
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
                f"{key} = {folder}: the name of the class folder {told(name)} is no UTF-8; rename it"
            ) from error


def _look_into(folder: bytes, name: bytes) -> _Found:
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
    # Taken before the list is read: what changes meanwhile makes the stamp old.
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
    """Why this entry is neither an image nor a folder to look into; None where it is one of them."""
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
    paths, offsets = packed([path for paths in per_class for path in paths])
    return FolderIndex(
        folder=folder,
        classes=tuple(name.decode("utf-8") for name in class_folders),
        labels=np.repeat(np.arange(len(counts), dtype=np.int64), counts),
        paths=paths,
        offsets=offsets,
        left_out=aside.summary(),
    )


def _unreadable(error: OSError, folder: str, key: str) -> InvalidDatasetError:
    place = told(error.filename) if error.filename else folder
    where = f"{key} = {folder}" + ("" if place == folder else f": {place}")
    match error.errno:
        case errno.ENOENT if place == folder:
            return InvalidDatasetError(f"{where}: there is no such folder; {expected_tree(folder)}")
        case errno.ENOTDIR if place == folder:
            return InvalidDatasetError(f"{where}: this is a file, not a folder; {expected_tree(folder)}")
        case _:
            return InvalidDatasetError(f"{where}: can't be read: {error.strerror}")
