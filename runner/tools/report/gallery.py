"""The worst mistakes of an evaluation, with their images."""

from __future__ import annotations

import base64
import csv
import heapq
import io
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from PIL import Image

from runner.base.errors import CheckpointError, RunnerError
from runner.base.safe_text import escape_formula
from runner.base.untrusted import open_regular
from runner.config.saved import load_saved
from runner.data.fingerprint import fingerprint
from runner.data.images.stored import for_display
from runner.data.source import ImageSource
from runner.data.sources.paths import resolve_paths
from runner.data.splits import Splits, open_splits
from runner.tools.runs.past import PastRun, data_of

_MOST_MISTAKES = 24
_MOST_BYTES_IN_A_LINE = 1 << 20
_SIDE_PX = 176
_SMALL_PX = 64  # images up to this side are kept without loss, as PNG


@dataclass(frozen=True, kw_only=True)
class Mistake:
    """A misclassified image."""

    path: str
    label: str
    predicted: str
    probability: float
    """Of the predicted class."""
    loss: float
    picture: str | None
    """A data URI; None where the image is not available."""
    is_small: bool


@dataclass(frozen=True, kw_only=True)
class Gallery:
    """The worst mistakes: the largest losses first."""

    mistakes: tuple[Mistake, ...]
    num_mistakes: int
    """All mistakes of the evaluation."""
    note: str | None
    """Why images, or all mistakes, are missing."""


@dataclass(frozen=True, kw_only=True, order=True)
class _Row:
    loss: float
    image: int
    path: str
    label: str
    predicted: str
    probability: float


def gallery(run: PastRun, splits: Splits | None) -> Gallery:
    """The worst mistakes of a run's evaluation.

    Args:
        run: the run.
        splits: its data set, if it is open already; else it is opened.

    Raises:
        CheckpointError: predictions.csv is damaged.
    """
    file = run.path / "evaluation" / "predictions.csv"
    if run.evaluation is None or not file.is_file():
        return Gallery(mistakes=(), num_mistakes=0, note="The run has not been evaluated image by image.")
    # predictions.csv has names that are safe for spreadsheets; the page shows the names of the classes.
    names = {escape_formula(name): name for name in run.evaluation["classes"]}
    wrong = [row for row in _rows(file, names) if row.label != row.predicted]
    worst = heapq.nlargest(_MOST_MISTAKES, wrong)
    source, note = _source(run, splits) if worst else (None, None)
    return Gallery(mistakes=tuple(_mistake(row, source) for row in worst), num_mistakes=len(wrong), note=note)


def _rows(file: Path, names: Mapping[str, str]) -> Iterator[_Row]:
    with open_regular(file) as opened:
        try:
            for row in csv.DictReader(_lines(opened)):
                yield _Row(
                    loss=float(row["loss"]),
                    image=_number(row["image"]),
                    path=row["path"],
                    label=names[row["label"]],
                    predicted=names[row["predicted"]],
                    probability=float(row["probability"]),
                )
        except (KeyError, ValueError, TypeError, csv.Error) as error:
            raise CheckpointError(f"{file} is damaged: {error}; evaluate the run again") from error


def _number(text: str) -> int:
    number = int(text)
    if not 0 <= number < 2**53:
        raise ValueError(f"there is no image {text}")
    return number


def _lines(file: IO[bytes]) -> Iterator[str]:
    """The lines of a file, none longer than 1 MiB."""
    while line := file.readline(_MOST_BYTES_IN_A_LINE):
        if len(line) == _MOST_BYTES_IN_A_LINE:
            raise ValueError(f"a line is longer than {_MOST_BYTES_IN_A_LINE:,} bytes")
        yield line.decode("utf-8")


def _source(run: PastRun, splits: Splits | None) -> tuple[ImageSource | None, str | None]:
    """The split that was evaluated, or why its images can't be shown."""
    try:
        if splits is None:
            config = load_saved(run.path, only_reads=True)
            splits = open_splits(resolve_paths(config.data), config.seed, may_fetch=False)
    except RunnerError as error:
        return None, f"The images can't be shown, because the data can't be opened: {error}"
    if data_of(run).get("fingerprint") not in (None, fingerprint(splits)):
        return None, "The images are not shown, because the data set has changed since the run."
    assert run.evaluation is not None, "only an evaluation has mistakes"
    named = {"train": splits.train, "val": splits.val, "test": splits.test}
    return named.get(run.evaluation.get("split", "val")), None


def _mistake(row: _Row, source: ImageSource | None) -> Mistake:
    picture, is_small = _thumbnail(source, row.image) if source is not None else (None, False)
    return Mistake(
        path=row.path,
        label=row.label,
        predicted=row.predicted,
        probability=row.probability,
        loss=row.loss,
        picture=picture,
        is_small=is_small,
    )


def _thumbnail(source: ImageSource, number: int) -> tuple[str | None, bool]:
    try:
        image = Image.fromarray(for_display(source.open(number).pixels()))
    except (RunnerError, IndexError):
        return None, False
    is_small = max(image.size) <= _SMALL_PX
    kind, options = ("png", {"optimize": True}) if is_small else ("jpeg", {"quality": 80, "optimize": True})
    image.thumbnail((_SIDE_PX, _SIDE_PX))
    buffer = io.BytesIO()
    image.save(buffer, format=kind, **options)
    return f"data:image/{kind};base64,{base64.b64encode(buffer.getvalue()).decode()}", is_small
