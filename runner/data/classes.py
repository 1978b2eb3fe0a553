"""Classes of one split as those of the training split, which are matched by name."""

from __future__ import annotations

import numpy as np

from runner.data.index import FolderIndex, some
from runner.data.source import Labels
from runner.errors import InvalidDatasetError


def unknown_classes_error(
    index: FolderIndex, key: str, place: str | None, train: FolderIndex
) -> InvalidDatasetError | None:
    """Classes that the training split lacks; None where there are none.

    Args:
        index: of the other split.
        key: the config key that names it.
        place: its folder or file.
        train: of the training split.
    """
    known = set(train.classes)
    unknown = tuple(name for name in index.classes if name not in known)
    if not unknown:
        return None
    return InvalidDatasetError(
        f"{key} = {place}: {len(unknown)} of {len(index.classes)} classes are none of the training split "
        f"{train.folder}: {some(unknown)}; the training split has {some(train.classes)}"
    )


def labels_by_name(index: FolderIndex, train: FolderIndex) -> Labels:
    """Class indices of the training split, shape (N,)."""
    number = {name: position for position, name in enumerate(train.classes)}
    return np.array([number[name] for name in index.classes], dtype=np.int64)[index.labels]


def missing_classes_note(index: FolderIndex, key: str, train: FolderIndex) -> tuple[str, ...]:
    """A sentence on the classes without an image in this split; none where all have one."""
    present = set(index.classes) - set(index.empty_classes())
    missing = tuple(name for name in train.classes if name not in present)
    if not missing:
        return ()
    return (f"{key}: no image of {len(missing)} of {len(train.classes)} classes: {some(missing)}",)
