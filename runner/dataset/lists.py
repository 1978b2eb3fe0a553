"""Reads a CSV list of images with their classes."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from runner.data.index import shown, some
from runner.errors import ConfigError, InvalidDatasetError, Problem

_THREADS = 16
_MAX_EXAMPLES = 5


@dataclass(frozen=True, kw_only=True)
class Columns:
    """Where a list has what; None where it does not have it."""

    path: str
    label: str
    group: str | None = None
    split: str | None = None


@dataclass(frozen=True)
class Row:
    """One image of a list."""

    path: str
    """As it stands in the list."""
    label: str
    group: str
    """Empty without a column of groups."""
    split: str
    """As it stands in the list; empty without a column of splits."""


@dataclass(frozen=True)
class ImageList:
    """The images of a list, each once, in its order."""

    rows: tuple[Row, ...]
    num_repeated: int
    """Rows that say the same as an earlier one."""


def read_list(file: Path, columns: Columns, *, delimiter: str, encoding: str) -> ImageList:
    """Read a list; a byte order mark, CRLF and quotes are as in RFC 4180 and Excel.

    Raises:
        ConfigError: a column is not there.
        InvalidDatasetError: the list can't be read, is empty, lacks values, or contradicts itself.
    """
    try:
        # Names that are no UTF-8 come as they are; for other encodings, what can't be read is a mistake.
        is_utf8 = encoding.lower().replace("_", "-") in ("utf-8", "utf8")
        name, errors = ("utf-8-sig", "surrogateescape") if is_utf8 else (encoding, "strict")
        with file.open(encoding=name, errors=errors, newline="") as text:
            return _without_repeats(file, list(_rows(file, text, columns, delimiter)))
    except OSError as error:
        raise InvalidDatasetError(f"input = {file}: can't be read: {error.strerror}") from error
    except (csv.Error, UnicodeError) as error:
        raise InvalidDatasetError(
            f"input = {file}: this is no CSV list in {encoding}: {error}; see the keys encoding and delimiter"
        ) from error


def _rows(file: Path, text: TextIO, columns: Columns, delimiter: str) -> Iterator[Row]:
    reader = csv.DictReader(text, delimiter=delimiter, strict=True)
    present = [name for name in reader.fieldnames or () if name]
    if not present:
        raise InvalidDatasetError(f"input = {file}: the list is empty; its first line names the columns")
    _check_columns(file, present, columns)
    for row in reader:
        values = [row[name] if name else "" for name in (columns.path, columns.label, columns.group, columns.split)]
        # Where a line is too short, the reader gives None.
        if any(not value and name for value, name in zip(values, vars(columns).values(), strict=True)):
            raise InvalidDatasetError(f"input = {file}, line {reader.line_num}: a value is missing")
        yield Row(*(value or "" for value in values))


def _check_columns(file: Path, present: list[str], columns: Columns) -> None:
    problems = [
        Problem(
            key=f"{what}_column",
            value=name,
            has_value=True,
            message=f"{file} has no such column; there are {some(present)}",
            hint="is the delimiter right?" if len(present) == 1 else None,
        )
        for what, name in vars(columns).items()
        if name is not None and name not in present
    ]
    if problems:
        raise ConfigError(problems)


def _without_repeats(file: Path, rows: list[Row]) -> ImageList:
    if not rows:
        raise InvalidDatasetError(f"input = {file}: the list names no image")
    seen: dict[str, Row] = {}
    for row in rows:
        first = seen.setdefault(row.path, row)
        if first != row:
            raise InvalidDatasetError(
                f"input = {file}: {shown(row.path)} stands there twice and differently: as {shown(first.label)!r} and "
                f"as {shown(row.label)!r}" + (", in other groups or splits" if first.label == row.label else "")
            )
    return ImageList(tuple(seen.values()), num_repeated=len(rows) - len(seen))


def sizes_of(input_file: Path, root: Path, names: list[str]) -> list[int]:
    """The size in bytes of each file that a list names, absolutely or relative to `root`.

    Raises:
        InvalidDatasetError: some are not there; says how many, and which are the first.
    """

    def size(name: str) -> int | None:
        try:
            return (root / name).stat().st_size
        except (OSError, ValueError):
            return None

    # Asking one by one takes long on file systems over a network.
    with ThreadPoolExecutor(_THREADS) as pool:
        sizes = list(pool.map(size, names))
    missing = [name for name, num_bytes in zip(names, sizes, strict=True) if num_bytes is None]
    if missing:
        examples = ", ".join(map(shown, missing[:_MAX_EXAMPLES])) + (", …" if len(missing) > _MAX_EXAMPLES else "")
        raise InvalidDatasetError(
            f"input = {input_file}: {len(missing):,} of {len(names):,} files are not there: {examples}; relative paths "
            f"start at {root}, or at root=FOLDER"
        )
    return [num_bytes for num_bytes in sizes if num_bytes is not None]
