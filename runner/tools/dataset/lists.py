"""Reads a CSV list of images with their classes."""

from __future__ import annotations

import stat
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from runner.base.errors import ConfigError, InvalidDatasetError, Problem
from runner.base.untrusted import UntrustedFileError
from runner.data.sources.index import is_image_name, told
from runner.data.sources.rows import Columns, ListMistake, MissingColumns, Row, entry, labels_told, rows_of

_THREADS = 16
_MAX_EXAMPLES = 5


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
        return _without_repeats(file, list(rows_of(file, columns, delimiter=delimiter, encoding=encoding)))
    except OSError as error:
        raise InvalidDatasetError(f"input = {file}: can't be read: {error.strerror}") from error
    except UntrustedFileError as error:
        raise InvalidDatasetError(f"input: {error}") from error
    except MissingColumns as mistake:
        raise ConfigError(list(_missing_columns(file, mistake))) from mistake
    except UnicodeError as error:
        raise InvalidDatasetError(f"input = {file}: is no text in {encoding}: {error}; see the key encoding") from error
    except ListMistake as mistake:
        raise InvalidDatasetError(f"input = {file}: {mistake}") from mistake


def _missing_columns(file: Path, mistake: MissingColumns) -> Iterator[Problem]:
    for what, name in mistake.missing.items():
        yield Problem(
            key=f"{what}_column",
            value=name,
            has_value=True,
            message=f"{file} has no such column; there are {mistake.there_are}",
            hint="is the delimiter right?" if mistake.is_joined else None,
        )


def _without_repeats(file: Path, rows: list[Row]) -> ImageList:
    if not rows:
        raise InvalidDatasetError(f"input = {file}: the list names no image")
    seen: dict[str, Row] = {}
    for row in rows:
        first = seen.setdefault(row.path, row)
        if first[1:] != row[1:]:  # but for the line
            said = "in other groups or splits" if first.label == row.label else labels_told(first, row)
            raise InvalidDatasetError(
                f"input = {file}: {entry(row.path, row.line)} stands there twice and differently "
                f"(lines {first.line} and {row.line}: {said})"
            )
    return ImageList(tuple(seen.values()), num_repeated=len(rows) - len(seen))


def refuse_special(path: Path) -> None:
    """Refuse an input that is neither a file nor a folder: to open a FIFO, or to read a device, may never end.

    Raises:
        InvalidDatasetError: it is not there, can't be looked at, or is something else.
    """
    try:
        mode = path.stat().st_mode
    except FileNotFoundError as error:
        raise InvalidDatasetError(f"input = {path}: there is no such file or folder") from error
    except OSError as error:
        raise InvalidDatasetError(f"input = {path}: can't be read: {error.strerror}") from error
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        raise InvalidDatasetError(f"input = {path}: is a device, a FIFO or a socket; expected a file or a folder")


def sizes_of(input_file: Path, root: Path, names: list[str]) -> list[int]:
    """The size in bytes of each file that a list names, absolutely or relative to `root`.

    Raises:
        InvalidDatasetError: some are not there; says how many, and which are the first.
    """

    def size(name: str) -> int | None:
        try:
            found = (root / name).stat()
        except (OSError, ValueError):
            return None
        return found.st_size if stat.S_ISREG(found.st_mode) else None

    # Asking one by one takes long on file systems over a network.
    with ThreadPoolExecutor(_THREADS) as pool:
        sizes = list(pool.map(size, names))
    missing = [name for name, num_bytes in zip(names, sizes, strict=True) if num_bytes is None]
    if missing:
        named = [told(name) for name in missing if is_image_name(name)]
        examples = ", ".join(named[:_MAX_EXAMPLES]) + (", …" if len(named) > _MAX_EXAMPLES else "")
        raise InvalidDatasetError(
            f"input = {input_file}: {len(missing):,} of {len(names):,} files are not there or no files"
            f"{f': {examples}' if examples else ''}; relative paths start at {root}, or at root=FOLDER"
        )
    return [num_bytes for num_bytes in sizes if num_bytes is not None]
