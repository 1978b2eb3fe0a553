"""Class names: matching the classes of splits, and finding names that are probably mistakes."""

from __future__ import annotations

import re
import unicodedata
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from runner.base.errors import InvalidDatasetError
from runner.data.source import Labels
from runner.data.sources.index import FolderIndex, name_list

_NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)(e[+-]?[0-9]+)?")
# What programs write for a missing value, in lower case.
_MISSING_VALUES = frozenset({"nan", "-nan", "null", "none", "nil", "n/a", "#n/a", "<na>", "nat"})
_MOST_EXAMPLES = 4


@dataclass(frozen=True)
class OddNames:
    """Classes whose names are probably mistakes."""

    names: tuple[str, ...]
    reason: str

    def __str__(self) -> str:
        # Escapes show the difference between two Unicode forms of the same letters.
        return f"{' and '.join(map(ascii, self.names))} {self.reason}"


def odd_names(classes: Iterable[str]) -> tuple[OddNames, ...]:
    """Classes whose names differ only in case, Unicode form, spaces or the spelling of a number (`a` and `A`, `2` and
    `2.0`), and those whose name stands for a missing value.
    """
    alike: dict[object, list[str]] = defaultdict(list)
    for name in classes:
        alike[_likeness(name)].append(name)
    similar = [
        OddNames(tuple(names), "differ in case, Unicode form, spaces or the spelling of a number only")
        for names in alike.values()
        if len(names) > 1
    ]
    missing = [OddNames((name,), "looks like a missing value") for name in classes if _folded(name) in _MISSING_VALUES]
    return (*similar, *missing)


def odd_names_note(classes: Iterable[str]) -> tuple[str, ...]:
    """A sentence on the odd names among these classes, if there are any."""
    odd = odd_names(classes)
    if not odd:
        return ()
    examples = "; ".join(map(str, odd[:_MOST_EXAMPLES])) + (f"; … ({len(odd)} in all)" if odd[_MOST_EXAMPLES:] else "")
    return (f"are these classes meant as they are? {examples}",)


def _likeness(name: str) -> object:
    folded = _folded(name)
    return float(folded) if _NUMBER.fullmatch(folded) else folded


def _folded(name: str) -> str:
    return " ".join(unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", name).casefold()).split())


def unknown_classes_error(
    index: FolderIndex, key: str, place: str | None, train: FolderIndex
) -> InvalidDatasetError | None:
    """The error for classes that the training split lacks; None if there are none.

    Args:
        index: index of the other split.
        key: the config key that names that split.
        place: its folder or file.
        train: index of the training split.
    """
    known = set(train.classes)
    unknown = tuple(name for name in index.classes if name not in known)
    if not unknown:
        return None
    return InvalidDatasetError(
        f"{key} = {place}: {len(unknown)} of {len(index.classes)} classes are none of the training split "
        f"{train.folder}: {name_list(unknown)}; the training split has {name_list(train.classes)}"
    )


def labels_by_name(index: FolderIndex, train: FolderIndex) -> Labels:
    """The labels of `index` as class indices of the training split, shape (N,)."""
    number = {name: position for position, name in enumerate(train.classes)}
    return np.array([number[name] for name in index.classes], dtype=np.int64)[index.labels]


def missing_classes_note(index: FolderIndex, key: str, train: FolderIndex) -> tuple[str, ...]:
    """A sentence on the classes without an image in this split, if there are any."""
    present = set(index.classes) - set(index.empty_classes())
    missing = tuple(name for name in train.classes if name not in present)
    if not missing:
        return ()
    return (f"{key}: no image of {len(missing)} of {len(train.classes)} classes: {name_list(missing)}",)
