"""Reads the rows of a CSV list of images, as RFC 4180 and Excel write them, for `data=csv` and for `dataset`."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from runner.base.untrusted import open_regular, printable
from runner.data.sources.index import is_image_name, some, told

# What Excel saves as "Unicode text".
_UTF_16 = (b"\xff\xfe", b"\xfe\xff")
# Of a file without line ends, such as one of zeros, no more than this is held in memory.
_MOST_LINE_CHARACTERS = 1 << 20
# The header of a file of another kind may be anything, such as a password.
_ENDINGS_OF_LISTS = (".csv", ".tsv")


@dataclass(frozen=True, kw_only=True)
class Columns:
    """Where a list has what; None where it does not have it."""

    path: str
    label: str
    group: str | None = None
    split: str | None = None


class Row(NamedTuple):
    """One image of a list."""

    line: int
    path: str
    """As it stands in the list."""
    label: str
    group: str
    """Empty without a column of groups."""
    split: str
    """As it stands in the list; empty without a column of splits."""


class ListMistake(Exception):
    """What is wrong with a list, before its name is put in front."""


class MissingColumns(ListMistake):
    """A list lacks columns."""

    def __init__(self, missing: dict[str, str], header: Sequence[str], file: Path) -> None:
        self.missing = missing
        """Names of the columns by what they should hold, such as path."""
        is_list = file.resolve().suffix.lower() in _ENDINGS_OF_LISTS
        self.there_are = some(header) if is_list else f"{len(header)} of other names"
        self.is_joined = len(header) == 1 and any(character in header[0] for character in ";\t|,")
        """Whether the delimiter looks wrong."""
        super().__init__(f"has no column {', '.join(map(repr, missing.values()))}")


def entry(path: str, line: int) -> str:
    """An entry of a list in a message: its name where an image could have it, else only where it stands.

    What was given as a list may be any file, and a log is no place for what is in that.
    """
    return told(path) if is_image_name(path) else f"line {line}"


def labels_told(one: Row, other: Row) -> str:
    """The classes that two rows give to the same image, as far as a message may tell them."""
    if not is_image_name(one.path):
        return "two classes"
    return f"{printable(one.label)}, then {printable(other.label)}"


def rows_of(file: Path, columns: Columns, *, delimiter: str, encoding: str = "utf-8") -> Iterator[Row]:
    """The rows of a list in their order; empty lines are passed.

    Names of files may be any bytes where the encoding is UTF-8; labels may not.

    Raises:
        OSError: the file can't be read.
        UntrustedFileError: it is no regular file.
        UnicodeError: it is not in this encoding.
        MissingColumns: a column is not there.
        ListMistake: the file is empty, UTF-16 instead of UTF-8 or no CSV, or has an endless line; a row lacks a value,
            or has another number of values than the header.
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
            raise ListMistake(f"line {reader.line_num}: this is no CSV: {error}") from error


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
    """The position of each of the columns, None where there is to be none."""
    if not any(header):
        raise ListMistake("the file is empty; expected a header line, such as path,label")
    names = {what: name for what, name in vars(columns).items() if name is not None}
    missing = {what: name for what, name in names.items() if name not in header}
    if missing:
        raise MissingColumns(missing, header, file)
    twice = [name for name in names.values() if header.count(name) > 1]
    if twice:
        raise ListMistake(f"has several columns {some(twice)}")
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
        row.label.encode("utf-8")
    except UnicodeEncodeError as error:
        label = f" {told(row.label)}" if is_image_name(row.path) else ""
        raise ListMistake(f"line {line}: the label{label} is no UTF-8; save the file as UTF-8") from error
    return row
