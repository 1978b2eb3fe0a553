"""Names of classes: those of one split as those of the training split, and those that are hardly meant as they are."""

from __future__ import annotations

import re
import unicodedata
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from runner.base.errors import InvalidDatasetError
from runner.data.source import Labels
from runner.data.sources.index import FolderIndex, some

_NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)(e[+-]?[0-9]+)?")
# What programs write where a value is missing, in lower case.
_MISSING_VALUES = frozenset({"nan", "-nan", "null", "none", "nil", "n/a", "#n/a", "<na>", "nat"})
_MOST_EXAMPLES = 4


@dataclass(frozen=True)
class OddNames:
    """Classes whose names are hardly meant so."""

    names: tuple[str, ...]
    reason: str

    def __str__(self) -> str:
        # Two forms of the same letters look alike, but not as escapes.
        return f"{' and '.join(map(ascii, self.names))} {self.reason}"


def odd_names(classes: Iterable[str]) -> tuple[OddNames, ...]:
    """Classes of names that differ in case, Unicode form, spaces or the spelling of a number only (`a` and `A`, `2` and
    `2.0`), and those called like a missing value.
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
    """A sentence on the odd names among these classes; none where there are none."""
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
