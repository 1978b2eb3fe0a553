"""The files of an evaluation: for programs, for spreadsheets, for people."""

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
from runner.evaluation.subject import Subject
from runner.run.contents import Contents, read_object

if TYPE_CHECKING:
    from runner.evaluation.examine import Findings

METRICS_FILE = "metrics.json"
# In the order in which they are written: metrics.json says that the others are there.
FILES = ("predictions.csv", "per_class.csv", "confusion_matrix.csv", "confusion_matrix.png", METRICS_FILE)


def write_evaluation(folder: Path, metrics: dict[str, Any], findings: Findings, source: ImageSource) -> None:
    """Write all files of an evaluation, each as a whole, metrics.json last.

    Raises:
        OutputError: when they can't be written.
    """
    from runner.evaluation.picture import confusion_png  # noqa: PLC0415 - matplotlib only where something is drawn

    with named_write_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
    classes = tuple(metrics["classes"])
    confusion = Confusion.from_json(metrics["confusion_matrix"], len(classes))
    content: dict[str, str | bytes] = {
        "predictions.csv": csv_lines(_prediction_rows(findings, source, classes)),
        "per_class.csv": csv_lines(_per_class_rows(metrics["per_class"])),
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


def check_free(folder: Path, subject: Subject, *, is_own: bool) -> None:
    """Refuse to write an evaluation where something else would be lost.

    An evaluation of the same weights on the same images may be replaced.

    Args:
        folder: where it is to go; need not exist.
        subject: what is evaluated.
        is_own: whether the folder belongs to the run, which keeps nothing but evaluations and their logs there.

    Raises:
        OutputError: naming what is in the way.
    """
    if folder.exists() and not folder.is_dir():
        raise OutputError(f"{folder} is a file, not a folder; choose another with output=DIR")
    if not folder.exists():
        return
    earlier = read_metrics(folder)
    if earlier is not None:
        told = subject.to_json()
        told.pop("differences_from_training", None)  # of the same images by name, of which the newest result is kept
        if is_own:
            del told["weights"]  # the folder is named after them; those of `best` change while the run goes on
        different = [key for key, value in told.items() if earlier.get(key) != value]
        if different:
            raise OutputError(
                f"{folder} holds an evaluation of something else (other {' and '.join(different)}); "
                "choose another folder with output=DIR"
            )
    elif not is_own and any(path.name != "logs" for path in folder.iterdir()):
        raise OutputError(f"{folder} is not empty and holds no evaluation; choose another folder with output=DIR")


def _prediction_rows(findings: Findings, source: ImageSource, classes: Sequence[str]) -> Iterator[Sequence[object]]:
    yield ("image", "path", "label", "predicted", "probability", "loss")
    rows = zip(findings.images, findings.predicted, findings.probability, findings.loss, strict=True)
    for image, predicted, probability, loss in rows:
        truth = classes[source.labels[image]]
        yield (image, source.describe(image), truth, classes[predicted], nine_digits(probability), nine_digits(loss))


def _per_class_rows(entries: list[dict[str, Any]]) -> Iterator[Sequence[object]]:
    yield tuple(entries[0])
    yield from (tuple(entry.values()) for entry in entries)


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
    """Indented for people, but with a row of a matrix or of a table on one line: a thousand classes stay readable."""
    entries = []
    for key, value in metrics.items():
        text = json.dumps(value, ensure_ascii=False, allow_nan=False)
        if isinstance(value, list) and value and isinstance(value[0], dict | list):
            rows = ",\n".join(f"    {json.dumps(row, ensure_ascii=False, allow_nan=False)}" for row in value)
            text = f"[\n{rows}\n  ]"
        entries.append(f"  {json.dumps(key)}: {text}")
    return "{\n" + ",\n".join(entries) + "\n}\n"
