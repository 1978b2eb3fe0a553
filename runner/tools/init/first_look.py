"""Looks at a folder of photos, without changing it: its splits, classes and sizes."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from runner.base.errors import InvalidDatasetError
from runner.base.reasons import reason_of
from runner.config.compose import compose_one
from runner.config.schema import Config
from runner.config.schema.data import DataConfig
from runner.data.source import ImageSource
from runner.data.sources.paths import resolve_paths
from runner.data.splits import open_splits
from runner.tools.dataset.layout import SPLITS

_MOST_MEASURED = 500


@dataclass(frozen=True, kw_only=True)
class FirstLook:
    """What was seen of a folder of photos."""

    places: Mapping[str, str]
    """Full paths by key of `data`: root where it has train/, else train; val where that has another name."""
    num_per_class: Mapping[str, int]
    """Training images, before a validation split is taken from them."""
    num_val: int | None
    """Images of the validation split; None where there is none."""
    num_test: int | None
    shorter_sides: tuple[int, ...]
    """In pixels and ascending, of some training images, evenly spread over the split."""
    num_unreadable: int
    """Of these images, how many can't be opened."""
    notes: tuple[str, ...]
    """On files that are left out, odd class names and the like."""

    @property
    def num_train(self) -> int:
        """Training images, before a validation split is taken from them."""
        return sum(self.num_per_class.values())

    def apply_to(self, config: Config) -> Config:
        """The same experiment with these photos as its data."""
        return config.model_copy(update={"data": _data_at(self.places, config.data)})


def look_at(photos: Path) -> FirstLook:
    """Look at a folder of class folders, or one with `train` and perhaps `val` and `test`.

    Args:
        photos: full path.

    Raises:
        RunnerError: it is no such folder, or training would refuse it.
    """
    job = compose_one(["data=folder", "data.root=photos"])
    assert job is not None, "no flag was given"
    places = _places(photos)
    data = resolve_paths(_data_at(places, job.config.data))
    splits = open_splits(data, job.config.seed)
    labels = splits.train.labels if data.val else np.concatenate([splits.train.labels, splits.val.labels])
    counts = np.bincount(labels, minlength=len(splits.classes)).tolist()
    sides, num_unreadable = _shorter_sides(splits.train)
    return FirstLook(
        places=places,
        num_per_class=dict(zip(splits.classes, counts, strict=True)),
        num_val=len(splits.val) if data.val else None,
        num_test=len(splits.test) if splits.test is not None else None,
        shorter_sides=sides,
        num_unreadable=num_unreadable,
        notes=splits.notes,
    )


def _data_at(places: Mapping[str, str], data: DataConfig) -> DataConfig:
    return data.model_copy(update={"root": None, "train": None, "val": None, **places})


def _places(photos: Path) -> dict[str, str]:
    if not _has_folders(photos / "train"):  # a class that is called `train` holds images
        return {"train": str(photos)}
    others = [name for name, split in SPLITS.items() if split == "val" and (photos / name).is_dir()]
    renamed = {} if not others or "val" in others else {"val": str(photos / others[0])}
    return {"root": str(photos), **renamed}


def _has_folders(folder: Path) -> bool:
    try:
        with os.scandir(folder) as entries:
            return any(entry.is_dir() and not entry.name.startswith(".") for entry in entries)
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as error:
        raise InvalidDatasetError(f"init.data: {folder} can't be read: {reason_of(error)}") from error


def _shorter_sides(source: ImageSource) -> tuple[tuple[int, ...], int]:
    """The shorter sides of some images, and how many could not be opened."""
    ids = np.linspace(0, len(source) - 1, min(_MOST_MEASURED, len(source)), dtype=np.int64).tolist()
    sides = []
    for image in ids:
        try:
            stored = source.open(image)
        except InvalidDatasetError:
            continue
        sides.append(min(stored.width, stored.height))
    return tuple(sorted(sides)), len(ids) - len(sides)
