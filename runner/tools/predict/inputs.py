"""The images to score: a folder, one image, or a list. Imports no torch."""

from __future__ import annotations

import csv
import hashlib
import io
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from runner.base.errors import InvalidDatasetError
from runner.base.reasons.damage import csv_mistake
from runner.base.untrusted import UntrustedFileError, read_bytes
from runner.base.user_paths import refuse_address, typed_path
from runner.data.sources.index import IMAGE_EXTENSIONS, path_text, scan_images

# GIF is decoded too, but left out of folders, where animations are rarely meant.
_SINGLE_FILE_EXTENSIONS = (*IMAGE_EXTENSIONS, "gif")
_MOST_BYTES = 1 << 30
_KINDS = (
    f"a folder, an image ({', '.join(_SINGLE_FILE_EXTENSIONS)}), a .txt with a path on each line, or a .csv with a "
    "column `path`"
)


@dataclass(frozen=True, kw_only=True)
class Inputs:
    """Images in the order in which they are scored."""

    files: Sequence[str]
    """Paths to open."""
    names: Sequence[str]
    """The column `path`: relative to an input folder, as written in a list, or as typed."""
    labels: Sequence[str | None] | None
    """The true class of each image or None; None instead of a sequence where no label is known."""
    notes: tuple[str, ...]
    """Sentences for the log."""

    def __len__(self) -> int:
        return len(self.files)

    def digest(self) -> str:
        """SHA-256 of all names and labels in their order."""
        digest = hashlib.sha256()
        for position, name in enumerate(self.names):
            label = self.labels[position] if self.labels is not None else None
            digest.update(f"{name}\0{label or ''}\0".encode())
        return digest.hexdigest()


def read_inputs(path: str, root: str | None, classes: Sequence[str]) -> Inputs:
    """List the images to score without opening them.

    Args:
        path: a folder, which is searched recursively, an image, a .txt or a .csv file.
        root: where the relative paths of a list start; by default in the folder of the list.
        classes: of the model; an image below a folder of such a name has this label.

    Raises:
        InvalidDatasetError: there are no images, or the list can't be read.
    """
    place = typed_path(path, "input")
    if place.is_dir():
        return _of_folder(place, classes)
    if not place.is_file():
        raise InvalidDatasetError(f"input = {path}: there is no such file or folder; expected {_KINDS}")
    match place.suffix.lower():
        case ".txt":
            lines = (line.removesuffix("\r") for line in _text(place, "UTF-8 text").split("\n"))
            return _of_list(place, root, [(line, None) for line in lines if line.strip()])
        case ".csv":
            return _of_list(place, root, list(_rows(place)))
        case suffix if suffix.removeprefix(".") in _SINGLE_FILE_EXTENSIONS:
            return Inputs(files=(str(place),), names=(path_text(path),), labels=None, notes=())
        case _:
            raise InvalidDatasetError(f"input = {path}: of an unknown kind; expected {_KINDS}")


def _of_folder(folder: Path, classes: Sequence[str]) -> Inputs:
    found, left_out = scan_images(str(folder), key="input")
    note = f"input: left out {', '.join(map(str, left_out))}" if left_out else ""
    if not found:
        raise InvalidDatasetError(
            f"input = {folder}: no image in this folder{f' ({note})' if note else ''}; images are files that end in "
            f"{', '.join(IMAGE_EXTENSIONS)}"
        )
    known = set(classes)
    first_folders = [path.partition("/")[0] if "/" in path else None for path in found]
    labels = [name if name in known else None for name in first_folders]
    return Inputs(
        files=[f"{folder}/{path}" for path in found],
        names=[path_text(path) for path in found],
        labels=labels if any(labels) else None,
        notes=(note,) if note else (),
    )


def _of_list(file: Path, root: str | None, rows: Sequence[tuple[str, str | None]]) -> Inputs:
    if not rows:
        raise InvalidDatasetError(f"input = {file}: the list is empty")
    start = typed_path(root, "root") if root is not None else file.parent
    if not start.is_dir():
        raise InvalidDatasetError(f"root = {root}: there is no such folder, where the paths of {file} would start")
    for number, (name, _) in enumerate(rows, 1):
        try:
            refuse_address(name)
        except ValueError as error:
            raise InvalidDatasetError(f"input = {file}: image {number:,} of the list {error}") from error
    labels = [label or None for _, label in rows]
    return Inputs(
        # expanduser of os.path leaves the home folder of an unknown user as it stands.
        files=[os.path.join(start, os.path.expanduser(name)) for name, _ in rows],  # noqa: PTH111, PTH118 - keeps links
        names=[name for name, _ in rows],
        labels=labels if any(labels) else None,
        notes=(),
    )


def _text(file: Path, kind: str) -> str:
    try:
        # utf-8-sig drops a byte order mark.
        return read_bytes(file, max_bytes=_MOST_BYTES).decode("utf-8-sig")
    except (OSError, UnicodeDecodeError, UntrustedFileError) as error:
        raise InvalidDatasetError(f"input = {file}: can't be read as {kind}: {error}") from error


def _rows(file: Path) -> Iterator[tuple[str, str | None]]:
    try:
        reader = csv.DictReader(io.StringIO(_text(file, "CSV"), newline=""))
        columns = list(reader.fieldnames or ())
        if "path" not in columns:
            there = f"its columns are {', '.join(map(repr, columns))}" if columns else "it is empty"
            raise InvalidDatasetError(f"input = {file}: has no column `path`; {there}")
        for row in reader:
            if row["path"] is None:
                raise InvalidDatasetError(f"input = {file}, line {reader.line_num}: too few columns")
            yield row["path"], row.get("label")
    except csv.Error as error:
        raise InvalidDatasetError(f"input = {file}: can't be read as CSV: {csv_mistake(error)}") from error
