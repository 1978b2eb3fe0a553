"""Opens the training, validation and test split of a data set, or collects all errors in it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import assert_never

import numpy as np

from runner.base.errors import (
    ConfigError,
    InvalidDatasetError,
    OutputError,
    PreflightError,
    Problem,
    ProblemsError,
    RunnerError,
)
from runner.config.schema.data import CsvData, DataConfig, DigitsData, FolderData, SyntheticData, TorchvisionData
from runner.data.held_out import grouped_split, stratified_split
from runner.data.images.batched import find_cache_problems
from runner.data.images.geometry import find_size_problems
from runner.data.source import ImageSource, Labels, Opened, Subset
from runner.data.sources.classes import odd_names_note
from runner.data.sources.csv import open_csv
from runner.data.sources.digits import ensure_digits
from runner.data.sources.exclude import without_excluded
from runner.data.sources.folder import open_folder
from runner.data.sources.index import name_list
from runner.data.sources.synthetic import open_synthetic

_NUM_PROBES = 8


@dataclass(frozen=True, kw_only=True)
class Splits:
    """The splits of a data set without errors."""

    classes: tuple[str, ...]
    """Class names of the training split, in index order."""
    train: ImageSource
    val: ImageSource
    test: ImageSource | None
    notes: tuple[str, ...]
    """Sentences for the log, on files that were left out, classes without validation images, and the like."""


@dataclass(frozen=True, kw_only=True)
class Inspection:
    """The splits of a data set, or None, and its errors."""

    splits: Splits | None
    errors: tuple[RunnerError, ...]


def open_splits(data: DataConfig, seed: int, *, global_batch_size: int = 1, may_fetch: bool = True) -> Splits:
    """Open a data set; see :func:`inspect_data`.

    Raises:
        RunnerError: the error that was found, or several in one (see :func:`combine_errors`).
    """
    inspection = inspect_data(data, seed, global_batch_size=global_batch_size, may_fetch=may_fetch)
    if inspection.splits is None:
        raise combine_errors(inspection.errors)
    return inspection.splits


def inspect_data(data: DataConfig, seed: int, *, global_batch_size: int = 1, may_fetch: bool = True) -> Inspection:
    """Open a data set and find all errors that can be found before training.

    Downloads torchvision's data sets and writes the digits, if they are missing. Lists the files of a folder, and
    decodes a few images until one is readable; other images that can't be read are found when they are used.

    Args:
        data: with resolved paths (:func:`runner.data.sources.paths.resolve_paths`).
        seed: seed of the experiment, on which a validation split made from the training split depends.
        global_batch_size: images per step over all processes, data.batch_size × world size.
        may_fetch: whether a missing data set may be downloaded or written, and the index of a folder cached; false for
            commands that only read a run, whose config may be somebody else's.
    """
    problems = [*find_size_problems(data), *find_cache_problems(data)]
    errors: list[RunnerError] = [ConfigError(problems)] if problems else []
    opened, mistakes = _opened(data, seed, may_fetch=may_fetch)
    errors += mistakes
    if opened is not None:
        try:
            opened = without_excluded(opened, data)
        except InvalidDatasetError as error:
            errors.append(error)
        opened = _with_validation(opened, data, seed)
        errors += _mistakes_in_splits(opened, data, global_batch_size)
    if errors or opened is None or opened.val is None:
        return Inspection(splits=None, errors=tuple(errors))
    notes = (*opened.notes, *odd_names_note(opened.classes))
    splits = Splits(classes=opened.classes, train=opened.train, val=opened.val, test=opened.test, notes=notes)
    return Inspection(splits=splits, errors=())


def combine_errors(errors: Sequence[RunnerError]) -> RunnerError:
    """One error for one or more: of their class where all have the same, else a PreflightError."""
    if len(errors) == 1:
        return errors[0]
    kind = type(errors[0])
    is_one_kind = all(type(error) is kind for error in errors)
    problems = [problem for error in errors for problem in _problems_of(error, with_name=not is_one_kind)]
    if not is_one_kind:
        return PreflightError(problems)
    if issubclass(kind, ProblemsError):
        return kind(problems)
    return kind(str(PreflightError(problems)))


def _problems_of(error: RunnerError, *, with_name: bool) -> Sequence[Problem]:
    if isinstance(error, ProblemsError):
        return error.problems
    return [Problem(key="", message=f"{error.name}: {error}" if with_name else str(error))]


def _opened(data: DataConfig, seed: int, *, may_fetch: bool) -> tuple[Opened | None, list[RunnerError]]:
    try:
        match data:
            case FolderData():
                return open_folder(data, may_keep=may_fetch)
            case CsvData():
                return open_csv(data)
            case DigitsData():
                assert data.root is not None, "resolve_paths fills it"
                ensure_digits(data.root, may_write=may_fetch)
                return open_folder(data, may_keep=may_fetch)
            case TorchvisionData():
                # Imports torch, which takes seconds.
                from runner.data.sources.torchvision import open_torchvision  # noqa: PLC0415

                return open_torchvision(data, may_fetch=may_fetch), []
            case SyntheticData():
                return open_synthetic(data, seed), []
            case _:
                assert_never(data)
    except (InvalidDatasetError, OutputError) as error:
        return None, [error]


def _with_validation(opened: Opened, data: DataConfig, seed: int) -> Opened:
    """Make a validation split from the training split, unless there is one, or one was named that can't be opened."""
    is_named = data.val is not None and isinstance(data, FolderData | CsvData | DigitsData)
    if opened.val is not None or is_named:
        return opened
    labels, groups = opened.train.labels, opened.train_groups
    if groups is None:
        parts = stratified_split(labels, data.val_fraction, seed, opened.classes)
    else:
        parts = grouped_split(labels, groups, data.val_fraction, seed, opened.classes)
    train, val = (Subset(opened.train, ids, labels[ids]) for ids in parts)
    rule = "of each class" if groups is None else "of each class, as far as whole groups allow"
    note = (
        f"there is no validation split: {len(val)} of {len(labels)} training images "
        f"(data.val_fraction = {data.val_fraction:g} {rule}, seed {seed}) are set aside for it"
    )
    return replace(opened, train=train, val=val, notes=(*opened.notes, note, *_lacking_note(opened, val, groups)))


def _lacking_note(opened: Opened, val: Subset, groups: Labels | None) -> tuple[str, ...]:
    has_training, has_validation = (
        np.bincount(source.labels, minlength=len(opened.classes)) > 0 for source in (opened.train, val)
    )
    lacking = [
        name for name, is_lacking in zip(opened.classes, has_training & ~has_validation, strict=True) if is_lacking
    ]
    of_what = "image" if groups is None else "group"
    return (f"validation lacks the classes of a single {of_what}: {name_list(lacking)}",) if lacking else ()


def _mistakes_in_splits(opened: Opened, data: DataConfig, global_batch_size: int) -> list[RunnerError]:
    errors: list[RunnerError] = []
    place = data.train or f"data={data.source}"
    if opened.val is not None and len(opened.val) == 0:
        errors.append(
            InvalidDatasetError(
                f"{place}: no image can be set aside for validation, because no class has two"
                f"{'' if opened.train_groups is None else ' groups'}; give data.val=… or more images"
            )
        )
    if global_batch_size > len(opened.train):
        errors.append(_batch_too_large(place, len(opened.train), data.smallest_batch_size, global_batch_size))
    sources = {"train": opened.train, "val": opened.val, "test": opened.test}
    return errors + [
        error for name, source in sources.items() if source is not None and (error := _unreadable(name, source))
    ]


def _batch_too_large(place: str, num_images: int, batch_size: int, global_batch_size: int) -> InvalidDatasetError:
    num_processes = global_batch_size // batch_size
    largest = num_images // num_processes
    product = f"data.batch_size = {batch_size}" + (f" × {num_processes} processes" if num_processes > 1 else "")
    advice = f"set data.batch_size to at most {largest}" if largest else "use fewer processes"
    return InvalidDatasetError(
        f"{place}: one step needs {global_batch_size} images ({product}), but the training split has only "
        f"{num_images}; {advice}"
    )


def _unreadable(name: str, source: ImageSource) -> RunnerError | None:
    """An error if none of a few images, spread over the split, can be decoded."""
    failure: InvalidDatasetError | None = None
    num_probes = min(_NUM_PROBES, len(source))
    for image in np.linspace(0, len(source) - 1, num_probes, dtype=np.int64).tolist():
        try:
            source.open(image).pixels()
        except InvalidDatasetError as error:
            failure = failure or error
        else:
            return None
    if failure is None:
        return None
    return InvalidDatasetError(
        f"data.{name}: no readable image: {num_probes} of {len(source)} were tried, none can be decoded; "
        f"the first: {failure}"
    )
