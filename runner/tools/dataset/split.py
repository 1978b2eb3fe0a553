"""Divides the images of a folder or list into splits: as lists, and on request as folders of copies or links."""

from __future__ import annotations

import csv
import io
import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, assert_never

import numpy as np
import numpy.typing as npt

from runner.base.console import tracked
from runner.base.errors import ConfigError, InvalidDatasetError, Problem
from runner.base.files import named_write_errors, sha256_of, write_atomic, write_json
from runner.base.reasons import reason_of
from runner.base.stop import StopRequest
from runner.config.schema.calls.of_datasets import DatasetSplitCall
from runner.data.held_out import grouped_split, stratified_split
from runner.data.sources.index import name_list, path_text, printable_path, scan_class_folders
from runner.data.sources.rows import Columns
from runner.tools.dataset.annotations import read_image_list, refuse_special, sizes_of
from runner.tools.dataset.layout import SPLITS, ImagePlace, check_class_name, class_folders, output_paths
from runner.tools.dataset.staging import full_path, new_folder, refuse_existing, refuse_full_disk, refuse_within

Ids = npt.NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class _Images:
    """The images to split."""

    root: Path
    """The folder where relative paths start."""
    paths: Sequence[str]
    labels: Ids
    """Index into `classes` of each image."""
    classes: tuple[str, ...]
    groups: Sequence[str] | None
    """Group of each image."""
    notes: Sequence[str]


def split_images(call: DatasetSplitCall, stop: StopRequest) -> dict[str, Any]:
    """Split a data set; the output folder is created by one rename once it is complete.

    Returns:
        The content of `OUTPUT/split.json`.

    Raises:
        InvalidDatasetError: the input can't be split.
        NotLabeledDatasetError: the input has no labels.
        ConfigError: a column is missing.
        OutputError: the output exists, or can't be written.
        StoppedOnRequest: a signal asked for it.
    """
    source, output = full_path(call.input), full_path(call.output)
    refuse_existing(output)
    refuse_special(source)
    if call.mode != "manifest":
        refuse_within(output, source)
    images = _read_folder(call, source) if source.is_dir() else _read_list(call, source)
    splits = _divided(call, images)
    if call.mode == "copy":
        refuse_full_disk(output, sum(sizes_of(source, images.root, list(images.paths))))
    with new_folder(output) as folder:
        for name, ids in splits.items():
            write_atomic(folder / f"{name}.csv", _as_csv(images, ids))
        if call.mode != "manifest":
            _place_files(folder, call, images, splits, stop)
        stop.raise_if_received("nothing was written")
        record = _record(call, folder, images, splits)
        write_json(folder / "split.json", record)
    return record


def _read_folder(call: DatasetSplitCall, folder: Path) -> _Images:
    if call.group_column is not None:
        raise ConfigError(
            [
                Problem(
                    key="group_column",
                    value=call.group_column,
                    has_value=True,
                    message="only a CSV list has columns, but the input is a folder",
                )
            ]
        )
    index = scan_class_folders(str(folder), key="input")
    if len(index.classes) > 1 and all(name.lower() in SPLITS for name in index.classes):
        raise InvalidDatasetError(
            f"input = {folder}: is split already, into {name_list(index.classes)}; to split its training images use "
            f"input={folder / index.classes[0]} or another of these folders"
        )
    paths = [index.path(image).removeprefix(f"{index.folder}/") for image in range(len(index))]
    notes = [f"left out {item}" for item in index.left_out]
    if empty := index.empty_classes():
        notes.append(f"classes without an image are in no split: {name_list(empty)}")
    return _Images(root=folder, paths=paths, labels=index.labels, classes=index.classes, groups=None, notes=notes)


def _read_list(call: DatasetSplitCall, file: Path) -> _Images:
    columns = Columns(path=call.path_column, label=call.label_column, group=call.group_column)
    listed = read_image_list(file, columns, delimiter=call.delimiter, encoding=call.encoding)
    root = full_path(call.root) if call.root else file.parent
    paths = [row.path for row in listed.rows]
    sizes_of(file, root, paths)  # raises where one is missing
    # Sorted by bytes, as class folders are: a list and a folder of the same images give the same splits.
    classes = tuple(sorted({row.label for row in listed.rows}, key=os.fsencode))
    for name in classes:
        check_class_name(name)
    number = {name: position for position, name in enumerate(classes)}
    notes = [f"{listed.num_repeated:,} rows repeat earlier ones and were used once"] if listed.num_repeated else []
    return _Images(
        root=root,
        paths=paths,
        labels=np.array([number[row.label] for row in listed.rows], dtype=np.int64),
        classes=classes,
        groups=[row.group for row in listed.rows] if call.group_column else None,
        notes=notes,
    )


def _divided(call: DatasetSplitCall, images: _Images) -> dict[str, Ids]:
    """The image numbers of each split. The test split is drawn first, then validation from the rest."""
    # 1 - 0.9 is not 0.1 in binary; it must be the same number as data.val_fraction=0.1.
    held_out = round(1 - call.fraction, 12)
    rest = np.arange(len(images.paths))
    splits: dict[str, Ids] = {}
    if call.test_fraction:
        rest, splits["test"] = _drawn(call, images, rest, call.test_fraction)
        held_out = round((held_out - call.test_fraction) / (1 - call.test_fraction), 12)
    train, val = _drawn(call, images, rest, held_out)
    splits = {"train": train, "val": val, **splits}
    empty = [name for name, ids in splits.items() if not len(ids)]
    if empty:
        unit = "groups" if images.groups is not None else "images"
        raise InvalidDatasetError(
            f"input = {call.input}: too few {unit} to split: nothing is left for {' and '.join(empty)}; a class gives "
            f"images to another split only if it has at least two {unit}"
        )
    return splits


def _drawn(call: DatasetSplitCall, images: _Images, ids: Ids, fraction: float) -> tuple[Ids, Ids]:
    """The images that stay and those that are drawn, of these images."""
    labels = images.labels[ids]
    if images.groups is None:
        stay, drawn = stratified_split(labels, fraction, call.seed, images.classes)
    else:
        groups = np.unique(images.groups, return_inverse=True)[1]
        stay, drawn = grouped_split(labels, groups[ids], fraction, call.seed, images.classes)
    return ids[stay], ids[drawn]


def _as_csv(images: _Images, ids: Ids) -> bytes:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["path", "label", *(["group"] if images.groups is not None else [])])
    for image in ids.tolist():
        own = [images.groups[image]] if images.groups is not None else []
        writer.writerow([images.paths[image], images.classes[images.labels[image]], *own])
    # Names that are no UTF-8 keep their bytes.
    return text.getvalue().encode(errors="surrogateescape")


def _place_files(
    folder: Path, call: DatasetSplitCall, images: _Images, splits: Mapping[str, Ids], stop: StopRequest
) -> None:
    """Copy or link the images to split/class/file."""
    folders = class_folders(images.classes)
    places = {}
    for name, ids in splits.items():
        for image in ids.tolist():
            path, label = images.paths[image], images.classes[images.labels[image]]
            places[path] = ImagePlace(name, label, path.removeprefix(f"{label}/"))
    paths = output_paths(places, folders)
    with named_write_errors(full_path(call.output)):
        for parent in {Path(path).parent for path in paths.values()}:
            (folder / parent).mkdir(parents=True, exist_ok=True)
        for path, target in tracked(paths.items(), label="splitting", unit="image", total=len(paths)):
            stop.raise_if_received("nothing was written")
            _place(call.mode, images.root / path, folder / target)


def _place(mode: Literal["manifest", "copy", "hardlink", "symlink"], source: Path, target: Path) -> None:
    match mode:
        case "copy":
            _copy(source, target)
        case "hardlink":
            # The file, not a link to it, which would break if the file were moved.
            target.hardlink_to(source.resolve())
        case "symlink":
            target.symlink_to(source)
        case "manifest":
            return
        case _:
            assert_never(mode)


def _copy(source: Path, target: Path) -> None:
    try:
        shutil.copyfile(source, target)
    except OSError as error:
        if error.filename == str(source) and error.filename2 is None:
            raise InvalidDatasetError(f"{printable_path(str(source))}: can't be read: {reason_of(error)}") from error
        raise


def _record(call: DatasetSplitCall, folder: Path, images: _Images, splits: Mapping[str, Ids]) -> dict[str, Any]:
    num_classes = len(images.classes)
    counts = {name: np.bincount(images.labels[ids], minlength=num_classes).tolist() for name, ids in splits.items()}
    per_class = {
        path_text(label): {name: own[position] for name, own in counts.items()}
        for position, label in enumerate(images.classes)
    }
    total = np.bincount(images.labels, minlength=num_classes).tolist()
    single = [path_text(label) for label, count in zip(images.classes, total, strict=True) if count == 1]
    return {
        "command": "dataset split",
        "input": path_text(str(full_path(call.input))),
        "root": path_text(str(images.root)),
        "output": path_text(str(full_path(call.output))),
        "mode": call.mode,
        "seed": call.seed,
        "fraction": call.fraction,
        "test_fraction": call.test_fraction,
        "rule": "stratified by class" if images.groups is None else "stratified by class, groups together",
        "group_column": call.group_column,
        "num_images": {name: len(ids) for name, ids in splits.items()},
        "num_per_class": per_class,
        "classes_of_one_image": single,
        "sha256": {f"{name}.csv": sha256_of(folder / f"{name}.csv") for name in splits},
        "notes": list(images.notes),
    }
