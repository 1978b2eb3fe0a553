"""Labelled images for a trained model: their classes are matched by name with those of the model."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from runner.base.errors import InvalidDatasetError
from runner.config.schema.data import DataConfig
from runner.data.images.stored import InputFormat
from runner.data.source import FolderSource, ImageSource, Labels, Subset
from runner.data.sources.exclude import without_excluded_from
from runner.data.sources.index import describe_left_out, name_list, scan_class_folders


def open_class_folders(
    folder: str, classes: Sequence[str], data: DataConfig, *, key: str
) -> tuple[ImageSource, tuple[str, ...]]:
    """Images of a folder of class folders, labelled with the given classes.

    Args:
        folder: full path of the folder that holds the class folders; some of the classes may be missing.
        classes: names in index order.
        data: its `exclude` and `max_pixels` apply.
        key: the config key that names the folder, for messages.

    Returns:
        The images, and sentences for the log.

    Raises:
        InvalidDatasetError: the folder has a class that is none of the given ones, or can't be read.
        NotLabeledDatasetError: it has no class folders.
    """
    index = scan_class_folders(folder, key=key)
    labels = _renumbered(index.labels, index.classes, classes, f"{key} = {folder}")
    notes = [describe_left_out(index, f"{key}: left out ")] if index.left_out else []
    present = np.unique(labels)
    missing = [name for number, name in enumerate(classes) if number not in present]
    if missing:
        notes.append(f"{key}: no image of {len(missing)} of {len(classes)} classes: {name_list(missing)}")
    opened = FolderSource(index, labels, data.max_pixels, InputFormat.of(data))
    source, of_exclude = without_excluded_from(opened, data, key=key)
    return source, (*notes, *of_exclude)


def relabelled(source: ImageSource, own: Sequence[str], classes: Sequence[str], *, place: str) -> ImageSource:
    """The same images with the indices that their classes have in `classes`.

    Args:
        source: images whose labels number the classes `own`.
        own: names in the order of those labels.
        classes: names in the wanted order.
        place: where the images come from, for messages.

    Raises:
        InvalidDatasetError: a class of `own` is none of `classes`.
    """
    labels = _renumbered(source.labels, own, classes, place)
    if np.array_equal(labels, source.labels):
        return source
    return Subset(source, np.arange(len(source), dtype=np.int64), labels)


def _renumbered(labels: Labels, own: Sequence[str], classes: Sequence[str], place: str) -> Labels:
    number = {name: position for position, name in enumerate(classes)}
    unknown = [name for name in own if name not in number]
    if unknown:
        raise InvalidDatasetError(
            f"{place}: {len(unknown)} of {len(own)} classes are none that the model knows: {name_list(unknown)}; "
            f"it knows {name_list(classes)}"
        )
    return np.array([number[name] for name in own], dtype=np.int64)[labels]
