"""Reads COCO's JSON of images, annotations and categories as one class per image."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, assert_never

from runner.base.errors import InvalidDatasetError, NotLabeledDatasetError
from runner.base.untrusted import UntrustedFileError, read_bytes
from runner.data.sources.index import told

# LVIS has a file of 1.1 GB.
_MOST_BYTES = 2 << 30
NO_ANNOTATION = "without an annotation"
SEVERAL_LABELS = "with several labels"

_Rule = Literal["error", "largest", "first", "skip"]


@dataclass(frozen=True)
class CocoLabels:
    """The class of each image, by its file name in the JSON, and what is left out, by reason."""

    labels: Mapping[str, str]
    left_out: Mapping[str, Sequence[str]]


def read_coco(file: Path, multiple_labels: _Rule) -> CocoLabels:
    """Read the classes of all images.

    Several annotations of the same category are one label. The area of an annotation is `area`, or that of its
    `bbox` (x, y, width, height).

    Args:
        file: in the format of https://cocodataset.org/#format-data (object detection).
        multiple_labels: what to do with images of several categories.

    Raises:
        NotLabeledDatasetError: there are no annotations.
        InvalidDatasetError: the file can't be read, is not of this format, or has an image of several categories
            where that is an error.
    """
    tree = _loaded(file)
    try:
        names = {category["id"]: str(category["name"]) for category in tree["categories"]}
        files = {image["id"]: str(image["file_name"]) for image in tree["images"]}
        annotations: dict[Any, list[Mapping[str, Any]]] = defaultdict(list)
        for annotation in tree["annotations"]:
            annotations[annotation["image_id"]].append(annotation)
        return _labels(file, files, names, annotations, multiple_labels)
    except (KeyError, TypeError, IndexError, ValueError) as error:
        what = f"{error} is missing" if isinstance(error, KeyError) else str(error)
        raise InvalidDatasetError(
            f"input = {file}: not as COCO's format has it: {what}; expected "
            '{"images": [{"id", "file_name"}], "annotations": [{"image_id", "category_id", "bbox"}], '
            '"categories": [{"id", "name"}]}'
        ) from error


def _loaded(file: Path) -> Mapping[str, Any]:
    try:
        tree = json.loads(read_bytes(file, max_bytes=_MOST_BYTES))
    except OSError as error:
        raise InvalidDatasetError(f"input = {file}: can't be read: {error.strerror}") from error
    except UntrustedFileError as error:
        raise InvalidDatasetError(f"input: {error}") from error
    except (ValueError, RecursionError) as error:
        raise InvalidDatasetError(f"input = {file}: this is no JSON: {error}") from error
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
                raise InvalidDatasetError(f"input = {file}: {told(name)} is listed twice, with different labels")
    return CocoLabels(labels, left_out)


def _chosen(
    file: Path, name: str, own: Sequence[Mapping[str, Any]], categories: set[str], rule: _Rule
) -> Mapping[str, Any]:
    if len(categories) == 1:
        return own[0]
    match rule:
        case "error" | "skip":
            raise InvalidDatasetError(
                f"input = {file}: {told(name)} has several labels: {', '.join(sorted(categories))}; choose a rule "
                "with multiple_labels=largest, first or skip"
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
