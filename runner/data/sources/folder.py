"""Opens `data=folder`: training, validation and test split as folders of class folders."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path

from runner.base.errors import InvalidDatasetError, NotLabeledDatasetError, RunnerError
from runner.base.reasons import reason_of
from runner.config.schema.data import DataConfig
from runner.data.cache.index_cache import load_or_scan
from runner.data.images.stored import InputFormat
from runner.data.source import FolderSource, Opened
from runner.data.sources.classes import labels_by_name, missing_classes_note, unknown_classes_error
from runner.data.sources.index import FolderIndex, describe_left_out, expected_tree, name_list, scan_class_folders
from runner.data.sources.overlap import find_same_class_folders, find_same_places
from runner.data.sources.paths import cache_folder


def open_folder(data: DataConfig, *, may_keep: bool = True) -> tuple[Opened | None, list[RunnerError]]:
    """List the images of all splits and give each its class index in the training split.

    Args:
        data: with resolved paths; `train` is set.
        may_keep: whether the index may be written to the cache folder; a cached index is used in any case.

    Returns:
        The splits, or None if the training split can't be opened; and all errors, each naming its folder.
    """
    places = {"data.train": data.train, "data.val": data.val, "data.test": data.test}
    errors: list[RunnerError] = [*find_same_places(places, "folder")]
    are_same = bool(errors)
    kept_notes: list[str] = []
    listed = _scanner(data, may_keep=may_keep)
    train = _scan_train(data, listed, errors, kept_notes)
    others = {
        name: _scan(folder, f"data.{name}", listed, errors, kept_notes)
        for name, folder in (("val", data.val), ("test", data.test))
        if folder is not None
    }
    if train is None:
        return None, errors
    errors += _mistakes_in_classes(train)
    if not are_same:
        named = {f"data.{name}": index for name, index in others.items() if index is not None}
        errors += find_same_class_folders({"data.train": train, **named})
    notes = (*kept_notes[:1], *_notes_of(train, "data.train"))
    sources: dict[str, FolderSource] = {}
    form = InputFormat.of(data)
    for name, index in others.items():
        if index is None:
            continue
        key = f"data.{name}"
        notes += _notes_of(index, key)
        error = unknown_classes_error(index, key, index.folder, train)
        if error is not None:
            errors.append(error)
        else:
            sources[name] = FolderSource(index, labels_by_name(index, train), data.max_pixels, form)
            notes += missing_classes_note(index, key, train)
    notes += _unused_validation_note(data)
    opened = Opened(
        classes=train.classes,
        train=FolderSource(train, train.labels, data.max_pixels, form),
        val=sources.get("val"),
        test=sources.get("test"),
        notes=notes,
    )
    return opened, errors


_Scanner = Callable[..., tuple[FolderIndex, str | None]]


def _scanner(data: DataConfig, *, may_keep: bool) -> _Scanner:
    """The function that lists a folder: (folder, key=…) → the index, and a sentence for the log or None."""
    if data.index_cache == "none":
        return lambda folder, *, key: (scan_class_folders(folder, key=key), None)
    return partial(load_or_scan, cache=cache_folder() / "index", may_keep=may_keep)


def _scan(folder: str, key: str, listed: _Scanner, errors: list[RunnerError], notes: list[str]) -> FolderIndex | None:
    try:
        index, note = listed(folder, key=key)
    except (InvalidDatasetError, NotLabeledDatasetError) as error:
        errors.append(error)
        return None
    notes += [note] if note is not None else []
    return index


def _scan_train(data: DataConfig, listed: _Scanner, errors: list[RunnerError], notes: list[str]) -> FolderIndex | None:
    assert data.train is not None, "resolve_paths fills it"
    if data.root is not None and Path(data.train) == Path(data.root, "train"):
        error = _without_train(data.root)
        if error is not None:
            errors.append(error)
            return None
    return _scan(data.train, "data.train", listed, errors, notes)


def _without_train(root: str) -> RunnerError | None:
    """The error for a data.root without `train`, with a guess of what was meant; None if `train` exists."""
    try:
        with os.scandir(root) as entries:
            listed = sorted(entries, key=lambda entry: entry.name)
            folders = [entry.name for entry in listed if entry.is_dir() and not entry.name.startswith(".")]
    except OSError as error:
        reason = "there is no such folder" if isinstance(error, FileNotFoundError) else reason_of(error)
        return InvalidDatasetError(f"data.root = {root}: {reason}; {expected_tree(f'{root}/train')}")
    if any(entry.name == "train" for entry in listed):
        return None
    deeper = [name for name in folders if Path(root, name, "train").is_dir()]
    if deeper:
        return InvalidDatasetError(
            f"data.root = {root}: has no folder `train`, but {root}/{deeper[0]} has; use data.root={root}/{deeper[0]}"
        )
    if not listed:
        return InvalidDatasetError(f"data.root = {root}: the folder is empty; {expected_tree(f'{root}/train')}")
    return _root_without_splits(root)


def _root_without_splits(root: str) -> RunnerError:
    try:
        index = scan_class_folders(root, key="data.root")
    except NotLabeledDatasetError:
        return NotLabeledDatasetError(
            f"data.root = {root}: has neither a folder `train` nor class folders, which give images their labels; "
            f"{expected_tree(f'{root}/train')}"
        )
    except InvalidDatasetError:
        return InvalidDatasetError(f"data.root = {root}: has no folder `train`; {expected_tree(f'{root}/train')}")
    return InvalidDatasetError(
        f"data.root = {root}: has no folder `train`; if {name_list(index.classes)} are the classes, "
        f"use data.train={root} instead of data.root"
    )


def _mistakes_in_classes(train: FolderIndex) -> list[RunnerError]:
    errors: list[RunnerError] = []
    if len(train.classes) < 2:
        errors.append(
            InvalidDatasetError(
                f"data.train = {train.folder}: only one class folder, {name_list(train.classes)}, but a classifier "
                f"needs at least 2; {expected_tree(train.folder)}"
            )
        )
    if empty := train.empty_classes():
        errors.append(
            InvalidDatasetError(
                f"data.train = {train.folder}: {len(empty)} of {len(train.classes)} class folders hold no image: "
                f"{name_list(empty)}; fill or remove them{describe_left_out(train, ' (left out: ')}"
                + (")" if train.left_out else "")
            )
        )
    return errors


def _notes_of(index: FolderIndex, key: str) -> tuple[str, ...]:
    text = describe_left_out(index, f"{key}: left out ")
    return (text,) if text else ()


def _unused_validation_note(data: DataConfig) -> tuple[str, ...]:
    """A note on a folder that looks like a validation split of another name."""
    if data.val is not None or data.root is None:
        return ()
    found = [name for name in ("valid", "validation", "dev") if Path(data.root, name).is_dir()]
    return tuple(
        f"{data.root}/{name} is not used; if it is the validation split: data.val={data.root}/{name}" for name in found
    )
