"""The files of an evaluation: metrics.json, three CSV tables, and a picture of the confusion matrix."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from runner.base.errors import CheckpointError, OutputError
from runner.base.files import named_write_errors, write_atomic
from runner.base.safe_text import csv_lines, nine_digits
from runner.data.source import ImageSource
from runner.evaluation.confusion import Confusion
from runner.evaluation.evaluation_inputs import EvaluationInputs
from runner.run.contents import Contents, read_object

if TYPE_CHECKING:
    from runner.evaluation.per_image import PerImageResults

METRICS_FILE = "metrics.json"
# In the order in which they are written: once metrics.json is there, all others are.
FILES = ("predictions.csv", "per_class.csv", "confusion_matrix.csv", "confusion_matrix.png", METRICS_FILE)


def write_evaluation(folder: Path, metrics: dict[str, Any], results: PerImageResults, source: ImageSource) -> None:
    """Write all files of an evaluation, each atomically, metrics.json last.

    Raises:
        OutputError: when they can't be written.
    """
    from runner.evaluation.drawing import confusion_png  # noqa: PLC0415 - matplotlib only where something is drawn

    with named_write_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
    classes = tuple(metrics["classes"])
    confusion = Confusion.from_json(metrics["confusion_matrix"], len(classes))
    content: dict[str, str | bytes] = {
        "predictions.csv": csv_lines(_prediction_rows(results, source, classes)),
        "per_class.csv": csv_lines([tuple(metrics["per_class"][0]), *(row.values() for row in metrics["per_class"])]),
        "confusion_matrix.csv": csv_lines(_confusion_rows(confusion, classes)),
        "confusion_matrix.png": confusion_png(confusion, classes),
        METRICS_FILE: _json(metrics),
    }
    for name in FILES:
        write_atomic(folder / name, content[name])


def read_metrics(folder: Path) -> dict[str, Any] | None:
    """metrics.json of an evaluation; None where there is none.

    Raises:
        CheckpointError: when it can't be read.
    """
    file = folder / METRICS_FILE
    try:
        return read_object(file, Contents)
    except FileNotFoundError:
        return None
    except CheckpointError as error:
        raise CheckpointError(f"{error}; remove it, or choose another folder") from error


def check_free(folder: Path, inputs: EvaluationInputs, *, is_own: bool) -> None:
    """Raise where writing an evaluation would overwrite anything but an evaluation of the same weights and images.

    Args:
        folder: the folder to write to; need not exist.
        inputs: the images and weights of the evaluation.
        is_own: whether the folder lies in the run folder, where only evaluations and their logs are.

    Raises:
        OutputError: the folder is a file, or holds another evaluation or other files.
    """
    if folder.exists() and not folder.is_dir():
        raise OutputError(f"{folder} is a file, not a folder; choose another with output=DIR")
    if not folder.exists():
        return
    earlier = read_metrics(folder)
    if earlier is not None:
        entries = inputs.to_json()
        entries.pop("differences_from_training", None)  # the data set has the same name, and the newest result is kept
        if is_own:
            del entries["weights"]  # the folder is named after them; `best` names others as the training continues
        different = [key for key, value in entries.items() if _as_complete(earlier.get(key), value) != value]
        if different:
            raise OutputError(
                f"{folder} holds an evaluation of something else (other {' and '.join(different)}); "
                "choose another folder with output=DIR"
            )
    elif not is_own and any(path.name != "logs" for path in folder.iterdir()):
        raise OutputError(f"{folder} is not empty and holds no evaluation; choose another folder with output=DIR")


def _as_complete(earlier: object, now: object) -> object:
    """An earlier entry with the keys that only a newer runner has, which had no other value then."""
    return {**now, **earlier} if isinstance(earlier, dict) and isinstance(now, dict) else earlier


def _prediction_rows(
    results: PerImageResults, source: ImageSource, classes: Sequence[str]
) -> Iterator[Sequence[object]]:
    yield ("image", "path", "label", "predicted", "probability", "loss")
    rows = zip(results.images, results.predicted, results.probability, results.loss, strict=True)
    for image, predicted, probability, loss in rows:
        truth = classes[source.labels[image]]
        yield (image, source.describe(image), truth, classes[predicted], nine_digits(probability), nine_digits(loss))


def _confusion_rows(confusion: Confusion, classes: Sequence[str]) -> Iterator[Sequence[object]]:
    if confusion.is_small:
        yield ("true", *classes)
        for name, row in zip(classes, confusion.matrix().tolist(), strict=True):
            yield (name, *row)
        return
    yield ("true", "predicted", "images")
    for truth, predicted, count in zip(confusion.truth, confusion.predicted, confusion.count, strict=True):
        yield (classes[truth], classes[predicted], count)


def _json(metrics: dict[str, Any]) -> str:
    """Indented, but each row of a matrix or table on one line, so that a thousand classes stay readable."""
    entries = []
    for key, value in metrics.items():
        text = json.dumps(value, ensure_ascii=False, allow_nan=False)
        if isinstance(value, list) and value and isinstance(value[0], dict | list):
            rows = ",\n".join(f"    {json.dumps(row, ensure_ascii=False, allow_nan=False)}" for row in value)
            text = f"[\n{rows}\n  ]"
        entries.append(f"  {json.dumps(key)}: {text}")
    return "{\n" + ",\n".join(entries) + "\n}\n"
