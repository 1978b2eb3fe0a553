"""Leaves out the images that data.exclude lists, for instance in the file that `dataset check` writes."""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from runner.base.errors import InvalidDatasetError
from runner.base.reasons import reason_of
from runner.base.reasons.damage import csv_mistake
from runner.base.untrusted import UntrustedFileError, read_bytes
from runner.base.user_paths import refuse_listed_address
from runner.config.schema.data import DataConfig
from runner.data.source import FolderSource, ImageSource, Opened, Subset
from runner.data.sources.index import name_list
from runner.data.sources.rows import entry_text

_COLUMN = "path"
_MAX_BYTES = 256 << 20


@dataclass(frozen=True)
class _Rest:
    """A split without the excluded images."""

    source: ImageSource
    ids: npt.NDArray[np.int64]
    """Numbers in the split as it was, shape (N,)."""
    found: frozenset[str]
    """Full paths of the excluded images."""


def without_excluded(opened: Opened, data: DataConfig) -> Opened:
    """The splits without the images that data.exclude lists.

    Args:
        opened: splits of files.
        data: with resolved paths.

    Raises:
        InvalidDatasetError: the list can't be read, or no image is left of a split or of a training class.
    """
    if data.exclude is None:
        return opened
    wanted = _wanted(data.exclude, data.root)
    train = _rest(opened.train, wanted)
    val = None if opened.val is None else _rest(opened.val, wanted)
    test = None if opened.test is None else _rest(opened.test, wanted)
    _refuse_emptied(opened, train, {"data.val": val, "data.test": test}, data.exclude)
    found = frozenset[str]().union(*(rest.found for rest in (train, val, test) if rest is not None))
    return replace(
        opened,
        train=train.source,
        val=None if val is None else val.source,
        test=None if test is None else test.source,
        train_groups=None if opened.train_groups is None else opened.train_groups[train.ids],
        notes=(*opened.notes, *_notes(data.exclude, len(found), [wanted[path] for path in wanted.keys() - found])),
    )


def without_excluded_from(source: ImageSource, data: DataConfig, *, key: str) -> tuple[ImageSource, tuple[str, ...]]:
    """One split without the images that data.exclude lists, and sentences for the log.

    Args:
        source: images of files.
        data: with resolved paths.
        key: the config key that names the split, for messages.

    Raises:
        InvalidDatasetError: the list can't be read, or no image is left.
    """
    if data.exclude is None:
        return source, ()
    wanted = _wanted(data.exclude, data.root)
    rest = _rest(source, wanted)
    if len(rest.ids) == 0:
        raise InvalidDatasetError(f"data.exclude = {data.exclude}: leaves no image of {key}")
    in_vain = [wanted[path] for path in wanted.keys() - rest.found]
    return rest.source, _notes(data.exclude, len(rest.found), in_vain)


def read_exclude(file: str) -> dict[str, int]:
    """The paths in a list, with their line numbers: the column `path` of a CSV file, else one path per line.

    Raises:
        InvalidDatasetError: the file can't be read, contains an address, or has a column `path` and is not CSV.
    """
    try:
        # Names of files may be any bytes; in quotes they may contain line breaks of any kind.
        text = read_bytes(Path(file), max_bytes=_MAX_BYTES).decode("utf-8-sig", "surrogateescape")
    except OSError as error:
        raise InvalidDatasetError(f"data.exclude = {file}: can't be read: {reason_of(error)}") from error
    except UntrustedFileError as error:
        raise InvalidDatasetError(f"data.exclude: {error}") from error
    lines = text.split("\n")
    is_csv = _COLUMN in [name.strip() for name in lines[0].split(",")]
    try:
        named = _cells(text) if is_csv else ((line.removesuffix("\r"), at) for at, line in enumerate(lines, 1))
        entries: dict[str, int] = {}
        for path, line in named:
            if path.strip():
                refuse_listed_address(path, line)
                entries.setdefault(path, line)
    except csv.Error as error:
        raise InvalidDatasetError(f"data.exclude = {file}: this is no CSV: {csv_mistake(error)}") from error
    except ValueError as error:
        raise InvalidDatasetError(f"data.exclude = {file}: {error}") from error
    return entries


def _cells(text: str) -> Iterator[tuple[str, int]]:
    """The column of paths, each with its line number."""
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    header = [name.strip() for name in next(reader)]
    if _COLUMN not in header:
        raise csv.Error("the quotes in its first line make one column of several")
    place = header.index(_COLUMN)
    yield from ((row[place], reader.line_num) for row in reader if len(row) > place)


def _wanted(file: str, root: str | None) -> dict[str, str]:
    """The entries of a list as messages show them, by their full paths."""
    base = root or str(Path(file).parent)
    return {
        os.path.normpath(os.path.join(base, path)): entry_text(path, line)  # noqa: PTH118 - names that no Path can hold
        for path, line in read_exclude(file).items()
    }


def _rest(source: ImageSource, wanted: Mapping[str, str]) -> _Rest:
    assert isinstance(source, FolderSource), "resolve_paths refuses data.exclude where images have no paths"
    paths = (source.index.path(image) for image in range(len(source)))
    # Paths of a folder are normalised; those of a CSV file may contain `..`.
    plain = (os.path.normpath(path) if "/../" in path else path for path in paths)
    excluded = {image: path for image, path in enumerate(plain) if path in wanted}
    if not excluded:
        return _Rest(source, np.arange(len(source)), frozenset())
    ids = np.delete(np.arange(len(source)), list(excluded))
    return _Rest(Subset(source, ids, source.labels[ids]), ids, frozenset(excluded.values()))


def _refuse_emptied(opened: Opened, train: _Rest, others: Mapping[str, _Rest | None], file: str) -> None:
    before, after = (
        np.bincount(source.labels, minlength=len(opened.classes)) for source in (opened.train, train.source)
    )
    emptied = [name for name, old, new in zip(opened.classes, before, after, strict=True) if old and not new]
    if emptied:
        raise InvalidDatasetError(
            f"data.exclude = {file}: leaves no image of {len(emptied)} of {len(opened.classes)} classes of "
            f"data.train: {name_list(emptied)}"
        )
    for key, rest in others.items():
        if rest is not None and rest.found and len(rest.ids) == 0:
            raise InvalidDatasetError(f"data.exclude = {file}: leaves no image of {key}")


def _notes(file: str, num_left_out: int, in_vain: Sequence[str]) -> tuple[str, ...]:
    note = f"data.exclude = {file}: {num_left_out} images are left out"
    if not in_vain:
        return (note,)
    names = name_list(sorted(in_vain))
    return (note, f"data.exclude = {file}: {len(in_vain)} entries name no image of this data set: {names}")
