"""Inputs of an import: folders, archives, CSV lists and COCO files, each as images with their places and contents."""

from __future__ import annotations

import tarfile
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, assert_never

from runner.base.errors import ConfigError, InvalidDatasetError, Problem
from runner.base.reasons import reason_of
from runner.base.untrusted import UntrustedFileError, open_regular
from runner.base.user_paths import typed_path
from runner.config.schema.calls.of_datasets import DatasetImportCall
from runner.data.sources.index import NO_IMAGE, is_image_name, name_list, scan_class_folders
from runner.data.sources.rows import Columns
from runner.tools.dataset.annotations import read_coco, read_image_list, refuse_special, sizes_of
from runner.tools.dataset.archive import CHUNK_BYTES, Chunks, Limits, Member, list_tar, list_zip, read_tar, read_zip
from runner.tools.dataset.layout import SPLITS, ImagePlace, Layout, lay_out, reason_to_leave_out

Format = Literal["folder", "zip", "tar", "csv", "coco"]


class UnreadableFileError(Exception):
    """One file of the input can't be read."""


@dataclass(frozen=True, kw_only=True)
class Source:
    """An input whose images are listed, but not read yet."""

    format: Format
    layout: Layout
    num_bytes: int
    """Size of all images on disk."""
    contents: Callable[[], Iterator[tuple[str, Chunks]]]
    """Name and content of each image of the layout, in any order. Each content has to be read before the next one is
    asked for; reading may raise UnreadableFileError."""
    notes: Sequence[str] = field(default=())


def open_source(call: DatasetImportCall, path: Path) -> Source:
    """List the images of an input.

    Raises:
        InvalidDatasetError: it can't be read, is of another format, or is an unsafe archive.
        NotLabeledDatasetError: it has no labels.
        ConfigError: a column is missing.
    """
    refuse_special(path)
    limits = Limits(max_expansion=call.max_expansion, max_unpacked_gib=call.max_unpacked_gib)
    kind = detect_format(path) if call.format == "auto" else call.format
    if (kind == "folder") != path.is_dir():
        raise InvalidDatasetError(f"input = {path}: is {'no' if kind == 'folder' else 'a'} folder, but format = {kind}")
    match kind:
        case "folder":
            return _folder(call, path)
        case "zip":
            members = list_zip(path, call.encoding, limits)
            return _archive(call, "zip", members, lambda wanted: read_zip(path, call.encoding, limits, wanted))
        case "tar":
            members = list_tar(path, call.encoding, limits)
            return _archive(call, "tar", members, lambda wanted: read_tar(path, call.encoding, limits, wanted))
        case "csv":
            return _csv(call, path)
        case "coco":
            return _coco(call, path)
        case _:
            assert_never(kind)


def detect_format(path: Path) -> Format:
    """The format of an input, by its content, else by its name.

    Raises:
        InvalidDatasetError: the format is unknown.
    """
    if path.is_dir():
        return "folder"
    suffixes = [suffix.lower() for suffix in path.suffixes]
    last = suffixes[-1] if suffixes else ""
    try:
        if last == ".zip" or zipfile.is_zipfile(path):
            return "zip"
        if ".tar" in suffixes or last in (".tgz", ".tbz2", ".txz") or tarfile.is_tarfile(path):
            return "tar"
    except (OSError, EOFError) as error:
        raise InvalidDatasetError(f"input = {path}: can't be read: {reason_of(error)}") from error
    if last in (".csv", ".tsv", ".txt"):
        return "csv"
    if last == ".json":
        return "coco"
    raise InvalidDatasetError(
        f"input = {path}: its format is unknown, by its content and by its name; give it: format=zip, tar, csv or coco"
    )


def _folder(call: DatasetImportCall, path: Path) -> Source:
    index = scan_class_folders(str(path), key="input")
    layout = lay_out(
        (index.path(image).removeprefix(f"{index.folder}/") for image in range(len(index))), call.class_from
    )
    notes = [f"left out {item}" for item in index.left_out]
    if empty := index.empty_classes():
        notes.append(f"folders without an image: {name_list(empty)}")
    return Source(
        format="folder",
        layout=layout,
        num_bytes=sum(sizes_of(path, path, list(layout.places))),
        contents=lambda: ((name, _file(path / name)) for name in layout.places),
        notes=[*notes, *_depth_note(call, layout)],
    )


def _archive(
    call: DatasetImportCall,
    kind: Literal["zip", "tar"],
    members: Sequence[Member],
    read: Callable[[Mapping[str, ImagePlace]], Iterator[tuple[str, Chunks]]],
) -> Source:
    reasons = {member.name: reason_to_leave_out(member.name) for member in members}
    layout = lay_out((name for name, reason in reasons.items() if reason is None), call.class_from)
    for name, reason in reasons.items():
        if reason is not None:
            layout.left_out[reason].append(name)
    num_bytes = sum(member.num_bytes for member in members if member.name in layout.places)
    return Source(
        format=kind,
        layout=layout,
        num_bytes=num_bytes,
        contents=lambda: read(layout.places),
        notes=_depth_note(call, layout),
    )


def _csv(call: DatasetImportCall, path: Path) -> Source:
    columns = Columns(path=call.path_column, label=call.label_column, split=call.split_column)
    listed = read_image_list(path, columns, delimiter=call.delimiter, encoding=call.encoding)
    unknown = sorted({row.split for row in listed.rows if row.split and row.split.lower() not in SPLITS})
    if unknown:
        message = f"its values are to be train, val or test, but there are {name_list(unknown)}"
        raise ConfigError([Problem(key="split_column", value=call.split_column, has_value=True, message=message)])
    places = {row.path: (SPLITS[row.split.lower()] if row.split else "", row.label) for row in listed.rows}
    notes = [f"{listed.num_repeated:,} rows repeat earlier ones and were used once"] if listed.num_repeated else []
    return _listed(call, "csv", path, places, notes)


def _coco(call: DatasetImportCall, path: Path) -> Source:
    found = read_coco(path, call.multiple_labels)
    source = _listed(call, "coco", path, {name: ("", label) for name, label in found.labels.items()}, [])
    source.layout.left_out.update({reason: list(names) for reason, names in found.left_out.items()})
    return source


def _listed(
    call: DatasetImportCall,
    kind: Literal["csv", "coco"],
    path: Path,
    places: Mapping[str, tuple[str, str]],
    notes: Sequence[str],
) -> Source:
    root = typed_path(call.root, "root").absolute() if call.root else path.parent
    layout = Layout()
    for name, (split, label) in places.items():
        if is_image_name(name):
            layout.places[name] = ImagePlace(split, label, name)
        else:
            layout.left_out[NO_IMAGE].append(name)
    return Source(
        format=kind,
        layout=layout,
        num_bytes=sum(sizes_of(path, root, list(layout.places))),
        contents=lambda: ((name, _file(root / name)) for name in layout.places),
        notes=notes,
    )


def _file(path: Path) -> Chunks:
    try:
        with open_regular(path) as file:
            while chunk := file.read(CHUNK_BYTES):
                yield chunk
    except OSError as error:
        raise UnreadableFileError(f"can't be read: {reason_of(error)}") from error
    except UntrustedFileError as error:
        raise UnreadableFileError(f"can't be read: {reason_of(error)}") from error


def _depth_note(call: DatasetImportCall, layout: Layout) -> list[str]:
    deeper = sum("/" in place.name for place in layout.places.values())
    if call.class_from == "parent" or not deeper:
        return []
    return [
        f"{deeper:,} images lie in folders below their class folder, and were put into it; if the innermost folders "
        "are the classes: class_from=parent"
    ]
