"""Opens `data=csv`: images that CSV files list, one file per split."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from runner.base.errors import InvalidDatasetError, RunnerError
from runner.base.reasons import reason_of
from runner.base.untrusted import UntrustedFileError
from runner.config.schema.data import CsvData
from runner.data.images.stored import InputFormat
from runner.data.source import FolderSource, Labels, Opened
from runner.data.sources.classes import labels_by_name, missing_classes_note, unknown_classes_error
from runner.data.sources.index import FolderIndex, name_list, pack_paths
from runner.data.sources.overlap import IDENTITY, Identities, file_identity, find_same_places, find_shared
from runner.data.sources.rows import (
    Columns,
    ListMistake,
    MissingColumns,
    Row,
    contradicting_labels,
    entry_text,
    rows_of,
)

_NUM_THREADS = 16
_FILES_PER_TASK = 2048
_NUM_EXAMPLES = 3


@dataclass(frozen=True, kw_only=True)
class CsvList:
    """One CSV file, read and checked."""

    index: FolderIndex
    """Its images in the order of the file; `folder` is where relative paths start."""
    files: Identities
    """Device and inode of each image's file, shape (N,)."""
    groups: Labels | None
    """Number of each image's group, shape (N,), where there is a group column."""
    notes: tuple[str, ...]


def open_csv(data: CsvData) -> tuple[Opened | None, list[RunnerError]]:
    """Read the lists of all splits and give each image its class index in the training split.

    Args:
        data: with resolved paths; `train` is set.

    Returns:
        The splits, or None if the training split can't be opened; and all errors, each naming its file.
    """
    files = {"train": data.train, "val": data.val, "test": data.test}
    errors: list[RunnerError] = [*find_same_places({f"data.{name}": file for name, file in files.items()}, "list")]
    are_same = bool(errors)
    lists = {name: _read(file, f"data.{name}", data, errors) for name, file in files.items() if file is not None}
    train = lists.pop("train")
    if train is None:
        return None, errors
    if len(train.index.classes) < 2:
        errors.append(
            InvalidDatasetError(
                f"data.train = {data.train}: only one class, {name_list(train.index.classes)}, but a classifier needs "
                f"at least 2; is {data.label_column!r} the column of the classes (data.label_column)?"
            )
        )
    notes, sources, form = list(train.notes), {}, InputFormat.of(data)
    for name, other in lists.items():
        if other is None:
            continue
        key = f"data.{name}"
        notes += other.notes
        error = unknown_classes_error(other.index, key, files[name], train.index)
        if error is not None:
            errors.append(error)
            continue
        sources[name] = FolderSource(other.index, labels_by_name(other.index, train.index), data.max_pixels, form)
        notes += missing_classes_note(other.index, key, train.index)
    images = {
        f"data.{name}": (own.index, own.files) for name, own in {"train": train, **lists}.items() if own is not None
    }
    shared = [] if are_same else list(find_shared(images))
    errors += [said for said in shared if isinstance(said, InvalidDatasetError)]
    notes += [said for said in shared if isinstance(said, str)]
    opened = Opened(
        classes=train.index.classes,
        train=FolderSource(train.index, train.index.labels, data.max_pixels, form),
        val=sources.get("val"),
        test=sources.get("test"),
        notes=tuple(notes),
        train_groups=train.groups,
    )
    return opened, errors


def _read(file: str, key: str, data: CsvData, errors: list[RunnerError]) -> CsvList | None:
    try:
        return read_csv_list(file, key, data)
    except InvalidDatasetError as error:
        errors.append(error)
        return None


def read_csv_list(file: str, key: str, data: CsvData) -> CsvList:
    """Read one CSV file and check that its images exist. Duplicate rows are used once.

    Args:
        file: full path.
        key: the config key that names it, for messages.
        data: names the columns, and the folder that relative paths start from.

    Raises:
        InvalidDatasetError: the file is missing, not UTF-8 or not CSV; columns are missing; a row has no path or label,
            or another number of values than the header; an image has two labels or does not exist; there is no row.
    """
    folder = data.root or str(Path(file).parent)
    try:
        columns = Columns(path=data.path_column, label=data.label_column, group=data.group_column)
        rows = list(rows_of(Path(file), columns, delimiter=data.delimiter))
    except OSError as error:
        raise InvalidDatasetError(f"{key} = {file}: can't be read: {reason_of(error)}") from error
    except UntrustedFileError as error:
        raise InvalidDatasetError(f"{key}: {error}") from error
    except MissingColumns as error:
        raise InvalidDatasetError(f"{key} = {file}: {_columns_note(error)}") from error
    except ListMistake as error:
        raise InvalidDatasetError(f"{key} = {file}: {error}") from error
    if not rows:
        raise InvalidDatasetError(f"{key} = {file}: lists no image: there is no row below the header")
    kept, notes = _once(rows, folder, f"{key} = {file}")
    files = _identified(kept, folder, f"{key} = {file}")
    classes = sorted({row.label for row in kept.values()}, key=os.fsencode)
    number = {name: position for position, name in enumerate(classes)}
    labels = np.fromiter((number[row.label] for row in kept.values()), np.int64, len(kept))
    paths, offsets = pack_paths([os.fsencode(path) for path in kept])
    index = FolderIndex(folder=folder, classes=tuple(classes), labels=labels, paths=paths, offsets=offsets, left_out=())
    groups = None
    if data.group_column is not None:
        groups = np.unique([row.group for row in kept.values()], return_inverse=True)[1].astype(np.int64)
    return CsvList(index=index, files=files, groups=groups, notes=notes)


def _columns_note(mistake: MissingColumns) -> str:
    missing = [f"{name!r} (data.{what}_column)" for what, name in mistake.missing.items()]
    hint = "; are its columns apart by another character (data.delimiter)?" if mistake.is_joined else ""
    return f"has no column {' and no column '.join(missing)}; it has {mistake.there_are}{hint}"


def _once(rows: Sequence[Row], folder: str, where: str) -> tuple[dict[str, Row], tuple[str, ...]]:
    """Each image once, by its normalised path, and a note on duplicate rows."""
    kept: dict[str, Row] = {}
    repeated: list[str] = []
    contradictions: list[str] = []
    for row in rows:
        path = _plain(row.path, folder)
        first = kept.setdefault(path, row)
        if first is row:
            continue
        if (first.label, first.group) == (row.label, row.group):
            repeated.append(entry_text(path, row.line))
        else:
            said = contradicting_labels(first, row) if first.label != row.label else "in two groups"
            contradictions.append(f"{entry_text(path, row.line)} (lines {first.line} and {row.line}: {said})")
    if contradictions:
        raise InvalidDatasetError(f"{where}: {len(contradictions)} rows contradict others: {_some(contradictions)}")
    note = f"{where}: {len(repeated)} rows repeat others, and are used once: {_some(repeated)}"
    return kept, (note,) if repeated else ()


def _plain(path: str, folder: str) -> str:
    """One spelling for `./a//b.jpg`, `a/b.jpg` and FOLDER/a/b.jpg; `..` stays, as it may follow a link."""
    if "//" in path or "./" in path:
        path = str(Path(path))
    return path.removeprefix(f"{folder}/")


def _identified(kept: Mapping[str, Row], folder: str, where: str) -> Identities:
    """Device and inode of each file; raises if one is missing."""
    paths = list(kept)
    parts = [paths[start : start + _FILES_PER_TASK] for start in range(0, len(paths), _FILES_PER_TASK)]

    def identities(part: list[str]) -> list[tuple[int, int] | None]:
        return [file_identity(os.path.join(folder, path), is_image=True) for path in part]  # noqa: PTH118 - a million

    with ThreadPoolExecutor(_NUM_THREADS) as threads:
        found = [file for files in threads.map(identities, parts) for file in files]
    missing = [path for path, file in zip(paths, found, strict=True) if file is None]
    if missing:
        hint = "; these look like paths of Windows: write / for \\" if "\\" in missing[0] else ""
        raise InvalidDatasetError(
            f"{where}: {len(missing)} of {len(paths)} images are not there or no files, looked for from {folder}: "
            f"{_some([entry_text(path, kept[path].line) for path in missing])}{hint}"
        )
    return np.array(found, IDENTITY)


def _some(texts: Sequence[str]) -> str:
    return ", ".join(texts[:_NUM_EXAMPLES]) + (", …" if len(texts) > _NUM_EXAMPLES else "")
