"""Reads what labels the images of an import or a split: COCO's JSON and CSV lists; checks the files they name."""

from __future__ import annotations

import json
import stat
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, assert_never

from runner.base.errors import ConfigError, InvalidDatasetError, NotLabeledDatasetError, Problem
from runner.base.reasons import reason_of
from runner.base.reasons.syntax import json_mistake
from runner.base.untrusted import UntrustedFileError, read_bytes
from runner.base.user_paths import refuse_address
from runner.data.sources.index import is_image_name, printable_path
from runner.data.sources.rows import (
    Columns,
    ListMistake,
    MissingColumns,
    Row,
    contradicting_labels,
    entry_text,
    rows_of,
)

# The annotations of LVIS take 1.1 GB.
_MOST_BYTES = 2 << 30
NO_ANNOTATION = "without an annotation"
SEVERAL_LABELS = "with several labels"

_Rule = Literal["error", "largest", "first", "skip"]
_THREADS = 16
_MAX_EXAMPLES = 5


@dataclass(frozen=True)
class CocoLabels:
    """The class of each image, by its file name in the JSON, and the names that are left out, by reason."""

    labels: Mapping[str, str]
    left_out: Mapping[str, Sequence[str]]


def read_coco(file: Path, multiple_labels: _Rule) -> CocoLabels:
    """Read the classes of all images.

    Several annotations of the same category are one label. The area of an annotation is `area`, or that of its
    `bbox` (x, y, width, height).

    Args:
        file: in the format of https://cocodataset.org/#format-data (object detection).
        multiple_labels: for images of several categories: fail, take the category of the largest or the first
            annotation, or leave the image out.

    Raises:
        NotLabeledDatasetError: there are no annotations.
        InvalidDatasetError: the file can't be read, is not of this format, or has an image of several categories
            and `multiple_labels` is error.
    """
    tree = _loaded(file)
    try:
        names = {category["id"]: str(category["name"]) for category in tree["categories"]}
        files = {image["id"]: str(image["file_name"]) for image in tree["images"]}
        annotations: dict[Any, list[Mapping[str, Any]]] = defaultdict(list)
        for annotation in tree["annotations"]:
            annotations[annotation["image_id"]].append(annotation)
        for name in files.values():
            _refuse_address(file, name)
        return _labels(file, files, names, annotations, multiple_labels)
    except (KeyError, TypeError, IndexError, ValueError) as error:
        what = f"{error} is missing" if isinstance(error, KeyError) else str(error)
        raise InvalidDatasetError(
            f"input = {file}: not in COCO's format: {what}; expected "
            '{"images": [{"id", "file_name"}], "annotations": [{"image_id", "category_id", "bbox"}], '
            '"categories": [{"id", "name"}]}'
        ) from error


def _refuse_address(file: Path, name: str) -> None:
    try:
        refuse_address(name)
    except ValueError as error:
        raise InvalidDatasetError(f"input = {file}: the file_name of an image {error}") from error


def _loaded(file: Path) -> Mapping[str, Any]:
    try:
        tree = json.loads(read_bytes(file, max_bytes=_MOST_BYTES))
    except OSError as error:
        raise InvalidDatasetError(f"input = {file}: can't be read: {reason_of(error)}") from error
    except UntrustedFileError as error:
        raise InvalidDatasetError(f"input: {error}") from error
    except json.JSONDecodeError as error:
        raise InvalidDatasetError(f"input = {file}{json_mistake(error)}") from error
    except UnicodeDecodeError as error:
        raise InvalidDatasetError(f"input = {file}: this is no UTF-8 text (at byte {error.start + 1})") from error
    except (ValueError, RecursionError) as error:
        raise InvalidDatasetError(f"input = {file}: this is no JSON that is read: {error}") from error
    if not isinstance(tree, dict) or "images" not in tree:
        raise InvalidDatasetError(f"input = {file}: this JSON is not in COCO's format: it has no list `images`")
    if not tree.get("annotations"):
        raise NotLabeledDatasetError(f"input = {file}: has no annotations, without which no image has a label")
    return tree


def _labels(
    file: Path,
    files: Mapping[Any, str],
    names: Mapping[Any, str],
    annotations: Mapping[Any, list[Mapping[str, Any]]],
    rule: _Rule,
) -> CocoLabels:
    if unknown := sorted(map(str, annotations.keys() - files.keys())):
        raise InvalidDatasetError(f"input = {file}: annotations of images that are not listed, such as id {unknown[0]}")
    labels: dict[str, str] = {}
    left_out: dict[str, list[str]] = defaultdict(list)
    for image, name in files.items():
        own = annotations.get(image, [])
        categories = {names[annotation["category_id"]] for annotation in own}
        if not own:
            left_out[NO_ANNOTATION].append(name)
        elif len(categories) > 1 and rule == "skip":
            left_out[SEVERAL_LABELS].append(name)
        else:
            label = names[_chosen(file, name, own, categories, rule)["category_id"]]
            if labels.setdefault(name, label) != label:
                raise InvalidDatasetError(
                    f"input = {file}: {printable_path(name)} is listed twice, with different labels"
                )
    return CocoLabels(labels, left_out)


def _chosen(
    file: Path, name: str, own: Sequence[Mapping[str, Any]], categories: set[str], rule: _Rule
) -> Mapping[str, Any]:
    if len(categories) == 1:
        return own[0]
    match rule:
        case "error" | "skip":
            raise InvalidDatasetError(
                f"input = {file}: {printable_path(name)} has several labels: {', '.join(sorted(categories))}; choose a "
                "rule with multiple_labels=largest, first or skip"
            )
        case "largest":
            return max(own, key=_area)
        case "first":
            return own[0]
        case _:
            assert_never(rule)


def _area(annotation: Mapping[str, Any]) -> float:
    if "area" in annotation:
        return float(annotation["area"])
    return float(annotation["bbox"][2]) * float(annotation["bbox"][3])


@dataclass(frozen=True)
class ListedImages:
    """The images of a list, each once, in the order of the list."""

    rows: tuple[Row, ...]
    num_repeated: int
    """Rows that repeat an earlier one."""


def read_image_list(file: Path, columns: Columns, *, delimiter: str, encoding: str) -> ListedImages:
    """Read a CSV list (RFC 4180, with or without a byte order mark).

    Raises:
        ConfigError: a column is missing.
        InvalidDatasetError: the list can't be read, is empty, lacks values, or has an image twice, differently.
    """
    try:
        return _without_repeats(file, list(rows_of(file, columns, delimiter=delimiter, encoding=encoding)))
    except OSError as error:
        raise InvalidDatasetError(f"input = {file}: can't be read: {reason_of(error)}") from error
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


def _without_repeats(file: Path, rows: list[Row]) -> ListedImages:
    if not rows:
        raise InvalidDatasetError(f"input = {file}: the list names no image")
    seen: dict[str, Row] = {}
    for row in rows:
        first = seen.setdefault(row.path, row)
        if first[1:] != row[1:]:  # all but the line number
            said = "in other groups or splits" if first.label == row.label else contradicting_labels(first, row)
            raise InvalidDatasetError(
                f"input = {file}: {entry_text(row.path, row.line)} is listed twice, with different values "
                f"(lines {first.line} and {row.line}: {said})"
            )
    return ListedImages(tuple(seen.values()), num_repeated=len(rows) - len(seen))


def refuse_special(path: Path) -> None:
    """Refuse an input that is neither a file nor a folder: reading a FIFO or a device may block forever.

    Raises:
        InvalidDatasetError: it does not exist, can't be accessed, or is a device, a FIFO or a socket.
    """
    try:
        mode = path.stat().st_mode
    except FileNotFoundError as error:
        raise InvalidDatasetError(f"input = {path}: there is no such file or folder") from error
    except OSError as error:
        raise InvalidDatasetError(f"input = {path}: can't be read: {reason_of(error)}") from error
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        raise InvalidDatasetError(f"input = {path}: is a device, a FIFO or a socket; expected a file or a folder")


def sizes_of(input_file: Path, root: Path, names: list[str]) -> list[int]:
    """The size in bytes of each file that a list names, absolutely or relative to `root`.

    Raises:
        InvalidDatasetError: some do not exist; the message counts them and names the first.
    """

    def size(name: str) -> int | None:
        try:
            found = (root / name).stat()
        except (OSError, ValueError):
            return None
        return found.st_size if stat.S_ISREG(found.st_mode) else None

    # In parallel, since each call is slow on network file systems.
    with ThreadPoolExecutor(_THREADS) as pool:
        sizes = list(pool.map(size, names))
    missing = [name for name, num_bytes in zip(names, sizes, strict=True) if num_bytes is None]
    if missing:
        named = [printable_path(name) for name in missing if is_image_name(name)]
        examples = ", ".join(named[:_MAX_EXAMPLES]) + (", …" if len(named) > _MAX_EXAMPLES else "")
        raise InvalidDatasetError(
            f"input = {input_file}: {len(missing):,} of {len(names):,} files do not exist or are no regular files"
            f"{f': {examples}' if examples else ''}; relative paths start at {root}, or at root=FOLDER"
        )
    return [num_bytes for num_bytes in sizes if num_bytes is not None]
