"""The confusion matrix, and which classes are taken for which."""

from __future__ import annotations

import base64
import io
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

from runner.evaluation.confusion import Confusion, shares_of_rows

_MOST_CLASSES_IN_A_TABLE = 20
_MOST_PAIRS = 12
_MOST_CLASSES_LISTED = 100
_SMALLEST_PICTURE_PX = 600
_BLUE = np.array([29, 78, 216])  # of a row's share 1; white is 0


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One cell of the matrix."""

    count: int
    share: float
    """Of the images of its row, in [0, 1]."""
    is_hit: bool


@dataclass(frozen=True, kw_only=True)
class Pair:
    """A class that was taken for another."""

    truth: str
    predicted: str
    count: int
    share: float
    """Of the images of `truth`, in [0, 1]."""


@dataclass(frozen=True, kw_only=True)
class Confusions:
    """What an evaluation says of the classes."""

    classes: tuple[str, ...]
    cells: tuple[tuple[Cell, ...], ...]
    """Rows are the truth; empty where there are too many classes for a table."""
    picture: str | None
    """A data URI of the matrix where there are too many classes for a table."""
    pairs: tuple[Pair, ...]
    """The most frequent confusions."""
    per_class: tuple[dict[str, Any], ...]
    """Class, precision, recall, f1, support; of very many classes those with the lowest F1."""
    num_classes: int


def confusions(evaluation: dict[str, Any] | None) -> Confusions | None:
    """What the evaluation of a run says of its classes; None where it was not evaluated in detail."""
    if evaluation is None:
        return None
    classes = tuple(str(name) for name in evaluation["classes"])
    found = Confusion.from_json(evaluation["confusion_matrix"], len(classes))
    is_table = len(classes) <= _MOST_CLASSES_IN_A_TABLE
    per_class = tuple(evaluation["per_class"])
    if len(per_class) > _MOST_CLASSES_LISTED:
        per_class = tuple(sorted(per_class, key=lambda entry: float(entry["f1"]))[:_MOST_CLASSES_LISTED])
    return Confusions(
        classes=classes,
        cells=_cells(found.matrix()) if is_table else (),
        picture=None if is_table else _picture(shares_of_rows(found.for_picture())),
        pairs=_pairs(classes, found),
        per_class=per_class,
        num_classes=len(classes),
    )


def _cells(counts: npt.NDArray[np.int64]) -> tuple[tuple[Cell, ...], ...]:
    shares = shares_of_rows(counts)
    return tuple(
        tuple(
            Cell(count=int(count), share=float(shares[row, column]), is_hit=row == column)
            for column, count in enumerate(line)
        )
        for row, line in enumerate(counts)
    )


def _pairs(classes: tuple[str, ...], found: Confusion) -> tuple[Pair, ...]:
    (wrong,) = np.nonzero(found.truth != found.predicted)
    most = wrong[np.argsort(-found.count[wrong], kind="stable")[:_MOST_PAIRS]]
    images = found.of_truth
    return tuple(
        Pair(
            truth=classes[found.truth[entry]],
            predicted=classes[found.predicted[entry]],
            count=int(found.count[entry]),
            share=float(found.count[entry] / images[found.truth[entry]]),
        )
        for entry in most
    )


def _picture(shares: npt.NDArray[np.float64]) -> str:
    """One square per entry; whiter is rarer. The square root lets rare confusions be seen."""
    depth = np.sqrt(shares)[..., None]
    pixels = np.rint(255 + depth * (_BLUE - 255)).astype(np.uint8)
    scale = -(-_SMALLEST_PICTURE_PX // len(shares))
    image = Image.fromarray(pixels).resize((len(shares) * scale, len(shares) * scale), Image.Resampling.NEAREST)
    buffer = io.BytesIO()
    image.quantize(64).save(buffer, format="PNG", optimize=True)
    return f"data:image/png;base64,{base64.b64encode(buffer.getvalue()).decode()}"
