"""Reads the rows of CSV files that list images, in the dialects of RFC 4180 and Excel."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from runner.base.reasons.damage import csv_mistake
from runner.base.untrusted import open_regular, printable
from runner.base.user_paths import refuse_listed_address
from runner.data.sources.index import is_image_name, name_list, printable_path

# The byte order marks of Excel's "Unicode text".
_UTF_16 = (b"\xff\xfe", b"\xfe\xff")
# Limits the memory for a file without line ends, such as one of zeros.
_MOST_LINE_CHARACTERS = 1 << 20
# Messages show the header of these files only: the first line of another file may be anything, such as a password.
_ENDINGS_OF_LISTS = (".csv", ".tsv")


@dataclass(frozen=True, kw_only=True)
class Columns:
    """The names of a list's columns; None for a column that it does not have."""

    path: str
    label: str
    group: str | None = None
    split: str | None = None


class Row(NamedTuple):
    """One image of a list."""

    line: int
    path: str
    """As in the file, perhaps relative."""
    label: str
    group: str
    """Empty without a column of groups."""
    split: str
    """Empty without a column of splits."""


class ListMistake(Exception):
    """An error in a list; the message lacks the name of the file."""


class MissingColumns(ListMistake):
    """A list lacks columns."""

    def __init__(self, missing: dict[str, str], header: Sequence[str], file: Path) -> None:
        self.missing = missing
        """Names of the missing columns by field of :class:`Columns`."""
        is_list = file.resolve().suffix.lower() in _ENDINGS_OF_LISTS
        self.there_are = name_list(header) if is_list else f"{len(header)} of other names"
        self.is_joined = len(header) == 1 and any(character in header[0] for character in ";\t|,")
        """Whether the delimiter looks wrong."""
        super().__init__(f"has no column {', '.join(map(repr, missing.values()))}")


def entry_text(path: str, line: int) -> str:
    """An entry of a list for a message: the path if it is an image's name, else only the line number.

    The user may have given any file as a list, and its content must not get into a log.
    """
    return printable_path(path) if is_image_name(path) else f"line {line}"


def contradicting_labels(one: Row, other: Row) -> str:
    """The two labels of the same image for a message, if the path is an image's name."""
    if not is_image_name(one.path):
        return "two classes"
    return f"{printable(one.label)}, then {printable(other.label)}"


def rows_of(file: Path, columns: Columns, *, delimiter: str, encoding: str = "utf-8") -> Iterator[Row]:
    """The rows of a list in their order; empty lines are skipped.

    With UTF-8, paths may contain bytes that are not UTF-8; labels may not.

    Raises:
        OSError: the file can't be read.
        UntrustedFileError: it is not a regular file.
        UnicodeError: it is not in this encoding.
        MissingColumns: a column is missing.
        ListMistake: the file is empty, UTF-16 instead of UTF-8 or not CSV, or has a line of a million characters; a row
            lacks a value, has another number of values than the header, or has an address as its path.
    """
    is_utf8 = encoding.lower().replace("_", "-") in ("utf-8", "utf8")
    name, errors = ("utf-8-sig", "surrogateescape") if is_utf8 else (encoding, "strict")
    with open_regular(file) as raw, io.TextIOWrapper(raw, name, errors, newline="") as text:
        if is_utf8 and raw.read(2) in _UTF_16:
            raise ListMistake("this is UTF-16; save it as UTF-8")
        raw.seek(0)
        reader = csv.reader(_lines(text), delimiter=delimiter, strict=True)
        try:
            header = [cell.strip() for cell in next(reader, [])]
            places = _places(header, columns, file)
            for values in reader:
                if values:  # else an empty line
                    yield _row(reader.line_num, values, header, places)
        except csv.Error as error:
            raise ListMistake(f"line {reader.line_num}: this is no CSV: {csv_mistake(error)}") from error


def _lines(text: io.TextIOWrapper) -> Iterator[str]:
    number = 0
    while line := text.readline(_MOST_LINE_CHARACTERS):
        number += 1
        if len(line) == _MOST_LINE_CHARACTERS and not line.endswith(("\n", "\r")):
            raise ListMistake(
                f"line {number} has {_MOST_LINE_CHARACTERS:,} characters or more: this is no list of images"
            )
        yield line


def _places(header: Sequence[str], columns: Columns, file: Path) -> tuple[int | None, ...]:
    """The position of each column; None for a column that the list does not have."""
    if not any(header):
        raise ListMistake("the file is empty; expected a header line, such as path,label")
    names = {what: name for what, name in vars(columns).items() if name is not None}
    missing = {what: name for what, name in names.items() if name not in header}
    if missing:
        raise MissingColumns(missing, header, file)
    twice = [name for name in names.values() if header.count(name) > 1]
    if twice:
        raise ListMistake(f"has several columns {name_list(twice)}")
    return tuple(None if name is None else header.index(name) for name in vars(columns).values())


def _row(line: int, values: Sequence[str], header: Sequence[str], places: Sequence[int | None]) -> Row:
    if len(values) != len(header):
        raise ListMistake(
            f"line {line}: {len(values)} values, but the header has {len(header)} columns; a value that holds the "
            "delimiter must stand in quotes"
        )
    if not all(map(str.strip, values)):
        for place in places:
            if place is not None and not values[place].strip():
                raise ListMistake(f"line {line}: has no value for {header[place]!r}")
    path, label, group, split = ["" if place is None else values[place] for place in places]
    # Names of files may begin or end with spaces.
    row = Row(line, path, label.strip(), group.strip(), split.strip())
    try:
        refuse_listed_address(path, line)
    except ValueError as error:
        raise ListMistake(str(error)) from error
    try:
        row.label.encode("utf-8")
    except UnicodeEncodeError as error:
        label = f" {printable_path(row.label)}" if is_image_name(row.path) else ""
        raise ListMistake(f"line {line}: the label{label} is no UTF-8; save the file as UTF-8") from error
    return row
