"""Chooses the values of a first experiment on photos, each with its reason."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from runner.base.errors import UsageError
from runner.config.reference.words import listed
from runner.config.schema.data import SMALLEST_BATCH_SIZE
from runner.tools.init.first_look import FirstLook

# What ImageNet's weights were trained at, and a side from which it is worth enlarging smaller photos to.
_USUAL_SIDE, _NEARLY_USUAL_SIDE = 224, 160
# From larger images a stem made for small ones would take too much time.
_MOST_FOR_SMALL_STEM = 64
_STEP_OF_SIDES = 32
_BALANCED_UP_TO = 1.5
_MOST_CLASSES_SHOWN = 6
_MOST_CHARACTERS = 40
_MANY_IMAGES = 5_000
_VAL_FRACTION = 0.2
# Batches of an epoch below which its weights are updated too seldom.
_FEWEST_STEPS = 10
UNMEASURED_BATCH_SIZE = 16


@dataclass(frozen=True)
class Setting:
    """One key of a group, its value, and why."""

    key: str
    value: str | float | None
    reason: str


@dataclass(frozen=True)
class BatchChoice:
    """A batch size, and the speeds it was chosen by."""

    batch_size: int
    images_per_second: dict[int, float]
    """Of all processes of this machine, by batch size; empty where nothing was measured."""


def choose_settings(look: FirstLook, batch: BatchChoice, project: Path) -> dict[str, list[Setting]]:
    """The settings by group of the config.

    Args:
        look: at the photos.
        batch: the batch size.
        project: folder of the project; photos within it are named by their path from there.
    """
    is_small = image_size(look) <= _MOST_FOR_SMALL_STEM
    return {
        "model": _model(look, is_small=is_small),
        "data": [*_places(look, project), *_split(look), *_images(look), _batch_size(look, batch), _balance(look)],
        "optimizer": [_rate(batch, is_small=is_small)],
        "trainer": _length(look, batch, is_small=is_small),
    }


def photo_counts(look: FirstLook) -> str:
    """Numbers of images and classes in words."""
    splits = [f"{look.num_train:,} training"]
    splits += [] if look.num_val is None else [f"{look.num_val:,} validation"]
    splits += [] if look.num_test is None else [f"{look.num_test:,} test"]
    return f"{listed(splits, 'and')} photos of {len(look.num_per_class):,} classes"


def image_size(look: FirstLook) -> int:
    """Side of the squares that the model is to see, in pixels."""
    median = float(np.median(look.shorter_sides)) if look.shorter_sides else _USUAL_SIDE
    if median >= _NEARLY_USUAL_SIDE:
        return _USUAL_SIDE
    return max(_STEP_OF_SIDES, int(median) // _STEP_OF_SIDES * _STEP_OF_SIDES)


def largest_batch_size(look: FirstLook) -> int:
    """The largest batch size that leaves an epoch enough steps."""
    num_train = look.num_train if look.num_val is not None else round((1 - _VAL_FRACTION) * look.num_train)
    return max(SMALLEST_BATCH_SIZE, num_train // _FEWEST_STEPS)


def path_from(project: Path, path: Path) -> str | None:
    """The path of photos from the folder of the project; None where they lie elsewhere, or it would be misread."""
    if not path.is_relative_to(project):
        return None
    within = str(path.relative_to(project))
    return None if within.startswith("~") else within


def _model(look: FirstLook, *, is_small: bool) -> list[Setting]:
    if is_small:
        why = "The photos are small: a stem that keeps their pixels, and no weights, which were made for larger ones."
        return [Setting("stem", "small", why)]
    why = (
        f"{look.num_train:,} photos: start from weights that know ImageNet. torchvision downloads these once (45 MB); "
        "a file, or null for none, is possible too."
    )
    return [Setting("weights", "IMAGENET1K_V1", why)]


def _places(look: FirstLook, project: Path) -> list[Setting]:
    settings = []
    for key, place in look.places.items():
        _check_path(place)
        within = path_from(project, Path(place))
        why = "Full path of the photos, which lie outside of this project." if within is None else "From this folder."
        if key == "train":
            why += " It holds the class folders themselves."
        settings.append(Setting(key, place if within is None else within, why))
    return settings


def _check_path(path: str) -> None:
    if "${" in path:
        raise UsageError(f"{path}: has ${{ in it, which an experiment takes for the name of a key; rename it")
    try:
        path.encode()
    except UnicodeEncodeError as error:
        raise UsageError(f"{path}: is no UTF-8, which an experiment is; rename it") from error


def _split(look: FirstLook) -> list[Setting]:
    if look.num_val is not None:
        return []
    why = "There is no val/: this share of each class is set aside for validation, always the same photos."
    return [Setting("val_fraction", _VAL_FRACTION, why)]


def _images(look: FirstLook) -> list[Setting]:
    sides = look.shorter_sides
    size = image_size(look)
    found = f"Shorter sides: {sides[0]:,} to {sides[-1]:,} px, median {np.median(sides):,g}" if sides else "Not seen"
    fits = "what the weights were trained at" if size == _USUAL_SIDE else f"a multiple of {_STEP_OF_SIDES} near it"
    settings = [Setting("image_size", size, f"{found} ({len(sides):,} photos looked at); {size} is {fits}.")]
    if look.num_unreadable:
        why = (
            f"{look.num_unreadable:,} of {len(sides) + look.num_unreadable:,} photos looked at can't be opened: "
            "left out, named in the log and counted; `python -m runner dataset check experiment=first` names all."
        )
        settings.append(Setting("on_bad_image", "skip", why))
    return settings


def _batch_size(look: FirstLook, batch: BatchChoice) -> Setting:
    at_most = f"more than {largest_batch_size(look):,} would leave an epoch fewer than {_FEWEST_STEPS} steps"
    if not batch.images_per_second:
        return Setting("batch_size", batch.batch_size, f"Not measured; {at_most}.")
    speeds = ", ".join(f"{size}: {speed:,.3g}" for size, speed in batch.images_per_second.items())
    why = f"Images/s by batch size, measured on this machine: {speeds}. The smallest within a tenth of the fastest"
    return Setting("batch_size", batch.batch_size, f"{why}; {at_most}.")


def _balance(look: FirstLook) -> Setting:
    by_size = sorted(look.num_per_class.items(), key=lambda item: -item[1])
    (largest, most), (smallest, fewest) = by_size[0], by_size[-1]
    ratio = (
        f"{_named(largest)} has {most / fewest:.3g} times as many photos ({most:,}) as {_named(smallest)} ({fewest:,})"
    )
    if most <= _BALANCED_UP_TO * fewest:
        return Setting("balance", "none", f"{ratio}: no weights needed.")
    total, count = look.num_train, len(by_size)
    shown = by_size if count <= _MOST_CLASSES_SHOWN else [by_size[0], by_size[-1]]
    weights = ", ".join(f"{_named(name)} {total / (count * own):.3g}" for name, own in shown)
    return Setting("balance", "loss_weights", f"{ratio}: each loss is weighed by its class: {weights}.")


def _rate(batch: BatchChoice, *, is_small: bool) -> Setting:
    if is_small:
        return Setting("lr", 0.01 * batch.batch_size / 16, "0.01 for batches of 16, and in proportion. Not tuned.")
    why = "0.001 for batches of 4, as in PyTorch's tutorial on transfer learning, and in proportion. Not tuned."
    return Setting("lr", 0.001 * batch.batch_size / 4, why)


def _length(look: FirstLook, batch: BatchChoice, *, is_small: bool) -> list[Setting]:
    epochs = 25 if look.num_train < _MANY_IMAGES else 10
    why = "Times that each photo is seen."
    if batch.images_per_second:
        num_train = look.num_train if look.num_val is not None else round((1 - _VAL_FRACTION) * look.num_train)
        seconds = num_train / batch.images_per_second[batch.batch_size]
        why += f" One takes about {_duration(seconds)} on this machine, without validation."
    settings = [
        Setting("epochs", epochs, why),
        Setting("patience", 5, "It ends earlier after so many epochs in a row without a better one; the best is kept."),
    ]
    if not is_small:
        why = "The new last layer alone, before the weights of ImageNet change too."
        settings.append(Setting("freeze_backbone_epochs", 3, why))
    return settings


def _duration(seconds: float) -> str:
    return f"{max(1, round(seconds)):,} seconds" if seconds < 120 else f"{seconds / 60:,.0f} minutes"


def _named(label: str) -> str:
    return label if len(label) <= _MOST_CHARACTERS else f"{label[:_MOST_CHARACTERS]}…"
