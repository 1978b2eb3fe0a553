"""Finds images that are in two splits, by links or by overlapping folders and lists."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Mapping
from itertools import combinations
from pathlib import Path

import numpy as np
import numpy.typing as npt

from runner.base.errors import InvalidDatasetError
from runner.data.sources.index import FolderIndex, name_list, printable_path

IDENTITY = np.dtype([("device", np.uint64), ("inode", np.uint64)])
Identities = npt.NDArray[np.void]
"""Device and inode of files: dtype IDENTITY, shape (N,)."""

_ADVICE = "give each split images of its own, as `dataset split` makes them"
_ADVICE_OF_VAL = f"{_ADVICE}, or leave data.val out: then data.val_fraction sets a share of training aside"
_MOST_EXAMPLES = 3


def file_identity(path: str | Path, *, is_image: bool = False) -> tuple[int, int] | None:
    """Device and inode of a file or folder, the same for all links to it; None if it does not exist.

    Args:
        path: of the file or folder; links are followed.
        is_image: whether anything but a regular file counts as missing.
    """
    try:
        found = os.stat(path)  # noqa: PTH116 - a million times
    except (OSError, ValueError):
        return None
    return None if is_image and not stat.S_ISREG(found.st_mode) else (found.st_dev, found.st_ino)


def find_same_places(places: Mapping[str, str | None], what: str) -> Iterator[InvalidDatasetError]:
    """Errors for splits that are the same folder or list, or of which one lies within the other.

    Args:
        places: full path of each split by its config key, training first; None for a split that is not given.
        what: kind of the places, for messages: `folder` or `list`.
    """
    given = [(key, place) for key, place in places.items() if place is not None]
    for (one, first), (other, second) in combinations(given, 2):
        for key, place, around, outer in ((other, second, one, first), (one, first, other, second)):
            how = _within(place, outer)
            if how is not None:
                said = f"is the same {what} as" if how == 0 else "lies within"
                yield InvalidDatasetError(
                    f"{key} = {place}: {said} {around} = {outer}, so that both have the same images; {_advice(other)}"
                )
                break


def _within(place: str, outer: str) -> int | None:
    """How many folders deep a place lies within another one, 0 if it is the same; None if it lies elsewhere."""
    wanted = file_identity(outer)
    if wanted is None or file_identity(place) is None:
        return None  # opening it raises the error
    real = Path(os.path.realpath(place))
    return next((depth for depth, folder in enumerate((real, *real.parents)) if file_identity(folder) == wanted), None)


def find_same_class_folders(indices: Mapping[str, FolderIndex]) -> Iterator[InvalidDatasetError]:
    """Errors for class folders that two splits share by links.

    Args:
        indices: of the splits by their config keys, training first.
    """
    identities = {
        key: {file_identity(Path(index.folder, name)): name for name in index.classes} for key, index in indices.items()
    }
    for (one, first), (other, second) in combinations(identities.items(), 2):
        shared = sorted(second[identity] for identity in first.keys() & second.keys() if identity is not None)
        if shared:
            yield InvalidDatasetError(
                f"{other} = {indices[other].folder}: {len(shared)} of {len(second)} class folders are folders of {one} "
                f"too, by links: {name_list(shared)}; {_advice(other)}"
            )


def find_shared(lists: Mapping[str, tuple[FolderIndex, Identities]]) -> Iterator[InvalidDatasetError | str]:
    """Images that are in two lists: an error if all of one list are, else a sentence for the log.

    Args:
        lists: index and file identities of each split by its config key, training first.
    """
    for (one, (_, first)), (other, (index, second)) in combinations(lists.items(), 2):
        shared = np.flatnonzero(np.isin(second, first))
        if not len(shared):
            continue
        examples = ", ".join(printable_path(index.path(image)) for image in shared[:_MOST_EXAMPLES].tolist())
        more = ", …" if len(shared) > _MOST_EXAMPLES else ""
        said = f"{other}: {len(shared)} of {len(second)} images are in {one} too: {examples}{more}"
        yield InvalidDatasetError(f"{said}; {_advice(other)}") if len(shared) == len(second) else said


def _advice(key: str) -> str:
    return _ADVICE_OF_VAL if key == "data.val" else _ADVICE
