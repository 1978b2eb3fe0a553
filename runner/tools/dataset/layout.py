"""Derives class and split of an image from its path in the input, and its path in the output folder."""

from __future__ import annotations

import hashlib
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Literal

from runner.base.errors import InvalidDatasetError
from runner.data.sources.index import (
    HIDDEN,
    NO_CLASS,
    NO_IMAGE,
    SYSTEM,
    SYSTEM_NAMES,
    is_image_name,
    name_list,
    printable_path,
)

# Usual names of split folders, in lower case.
SPLITS = {
    "train": "train",
    "training": "train",
    "val": "val",
    "valid": "val",
    "validation": "val",
    "dev": "val",
    "test": "test",
    "testing": "test",
}
NO_SPLIT = "outside the splits"
_MAX_NAME_BYTES = 255


@dataclass(frozen=True)
class ImagePlace:
    """Split, class and name of an image in the output."""

    split: str
    """train, val or test; empty where the input has no splits."""
    label: str
    """Name of the class."""
    name: str
    """Its path below the class folder, from which its name in the output is made."""


@dataclass
class Layout:
    """The place of each image, by its path in the input, and the paths that are left out, by reason."""

    places: dict[str, ImagePlace] = field(default_factory=dict)
    left_out: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))


def reason_to_leave_out(name: str) -> str | None:
    """Why a path in an archive or list is no image of the data set; None where it is one."""
    parts = name.split("/")
    if any(part.lower().encode(errors="surrogateescape") in SYSTEM_NAMES for part in parts):
        return SYSTEM
    if any(part.startswith(".") for part in parts):
        return HIDDEN
    return None if is_image_name(parts[-1]) else NO_IMAGE


def lay_out(names: Iterable[str], class_from: Literal["top", "parent"]) -> Layout:
    """Find root, splits and classes in a tree of images.

    The root is found first: as long as there is only one folder, and it holds no images or several folders with
    images, the search continues inside it. The folders of the root are splits if one is called train and either all of
    them have names of splits or at least two different splits are named; else they are classes.

    Args:
        names: paths of all images, with `/` between their parts.
        class_from: which folder below the root or split names the class, the topmost or the innermost one.

    Raises:
        InvalidDatasetError: two folders stand for the same split.
    """
    layout = Layout()
    paths = sorted(tuple(name.split("/")) for name in names)
    root = _root(paths)
    depth = len(root)
    inside = [path for path in paths if path[:depth] == root and len(path) > depth + 1]
    splits = _splits(inside, depth)
    for path in paths:
        below = path[depth:]
        if path[:depth] != root or len(below) < 2:
            layout.left_out[NO_CLASS].append("/".join(path))
            continue
        split = splits.get(below[0], "")
        if splits and not split:
            layout.left_out[NO_SPLIT].append("/".join(path))
            continue
        within = below[1:] if splits else below
        if len(within) < 2:
            layout.left_out[NO_CLASS].append("/".join(path))
            continue
        at = 0 if class_from == "top" else len(within) - 2
        layout.places["/".join(path)] = ImagePlace(split, within[at], "/".join(within[at + 1 :]))
    return layout


def _root(paths: Sequence[tuple[str, ...]]) -> tuple[str, ...]:
    root: tuple[str, ...] = ()
    while True:
        depth = len(root)
        inside = [path for path in paths if path[:depth] == root and len(path) > depth + 1]
        folders = {path[depth] for path in inside}
        if len(folders) != 1:
            return root
        (only,) = folders
        deeper = {path[depth + 1] for path in inside if len(path) > depth + 2}
        has_images = any(len(path) == depth + 2 for path in inside)
        is_split = SPLITS.get(only.lower()) == "train"
        if not deeper or is_split or (has_images and len(deeper) < 2):
            return root
        root = (*root, only)


def _splits(inside: Sequence[tuple[str, ...]], depth: int) -> dict[str, str]:
    folders = {path[depth] for path in inside}
    # A split holds class folders; a class that is called `train` holds images.
    with_folders = {path[depth] for path in inside if len(path) > depth + 2}
    splits = {name: SPLITS[name.lower()] for name in sorted(with_folders) if name.lower() in SPLITS}
    if "train" not in splits.values() or (len(splits) < len(folders) and len(set(splits.values())) < 2):
        return {}
    twice = [name for name in splits if list(splits.values()).count(splits[name]) > 1]
    if twice:
        raise InvalidDatasetError(f"the folders {name_list(twice)} stand for the same split; rename or merge them")
    return splits


def class_folders(labels: Iterable[str]) -> dict[str, str]:
    """A folder name for each class: `/` and NUL, and a leading dot, which would hide the folder, become `_`.

    Raises:
        InvalidDatasetError: a name is empty, too long or no UTF-8, or two classes get the same folder.
    """
    folders: dict[str, str] = {}
    taken: dict[str, str] = {}
    for label in sorted(set(labels)):
        check_class_name(label)
        folder = _visible(re.sub(r"[/\0]", "_", label))
        if len(folder.encode()) > _MAX_NAME_BYTES:
            raise InvalidDatasetError(f"the name of a class is longer than {_MAX_NAME_BYTES} bytes: {label[:60]}…")
        if folder in taken:
            raise InvalidDatasetError(f"the classes {taken[folder]!r} and {label!r} would share the folder {folder!r}")
        taken[folder] = label
        folders[label] = folder
    return folders


def check_class_name(label: str) -> None:
    """Check the name of a class.

    Raises:
        InvalidDatasetError: it is empty or no UTF-8.
    """
    if not label.strip():
        raise InvalidDatasetError("a class has an empty name")
    try:
        label.encode()
    except UnicodeEncodeError as error:
        raise InvalidDatasetError(
            f"the name of the class {printable_path(label)} is no UTF-8; rename it, or say how names are encoded, "
            "such as encoding=cp1252"
        ) from error


def _visible(name: str) -> str:
    is_system = name.lower().encode(errors="surrogateescape") in SYSTEM_NAMES
    return f"_{name.removeprefix('.')}" if name.startswith(".") or is_system else name


def output_paths(places: Mapping[str, ImagePlace], folders: Mapping[str, str]) -> dict[str, str]:
    """A path in the output folder for each image, [split/]class/file; it does not depend on the order of the input.

    A file keeps its name where possible. Where two images of a class have the same name (ignoring case, as some file
    systems do), the later one by path gets the names of its folders in front, or a number.
    """
    taken: set[str] = set()
    paths: dict[str, str] = {}
    for name in sorted(places):
        place = places[name]
        folder = "/".join(part for part in (place.split, folders[place.label]) if part)
        for candidate in _candidates(place.name):
            path = f"{folder}/{candidate}"
            if path.casefold() not in taken:
                break
        taken.add(path.casefold())
        paths[name] = path
    return paths


def _candidates(name: str) -> Iterator[str]:
    *parents, own = [part for part in name.split("/") if part not in ("", ".", "..")]
    yield _fitting(own, name)
    if parents:
        yield _fitting("__".join([*parents, own]), name)
    number = 2
    while True:
        stem, suffix = _stem_and_suffix(own)
        yield _fitting(f"{stem}-{number}{suffix}", name)
        number += 1


def _fitting(candidate: str, name: str) -> str:
    """A name of at most 255 bytes; a hash of the whole name keeps shortened names different."""
    visible = _visible(candidate)
    encoded = visible.encode(errors="surrogateescape")
    if len(encoded) <= _MAX_NAME_BYTES:
        return visible
    suffix = _stem_and_suffix(visible)[1]
    digest = hashlib.blake2b(f"{name}\0{candidate}".encode(errors="surrogateescape"), digest_size=6).hexdigest()
    end = f"-{digest}{suffix}"
    return encoded[: _MAX_NAME_BYTES - len(end.encode())].decode(errors="ignore") + end


def _stem_and_suffix(name: str) -> tuple[str, str]:
    path = PurePosixPath(name)
    return path.stem, path.suffix
