"""Pictures of a report as data URIs, without scripts: how all charts are drawn, the curves of a training, and what an
evaluation says of the classes.
"""

from __future__ import annotations

import base64
import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, PercentFormatter
from PIL import Image

from runner.evaluation.confusion import Confusion, shares_of_rows
from runner.evaluation.drawing import drawn

_SIZE_INCHES = (4.6, 2.5)
BLUE, GREY, GREEN, OCHRE = "#1d4ed8", "#94a3b8", "#059669", "#b45309"
_MOST_MARKERS = 30
_STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",  # text stays text: small, and sharp in print
    "svg.hashsalt": "runner",  # the same curves are the same bytes
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": "#cbd5e1",
    "axes.labelcolor": "#475569",
    "xtick.color": "#475569",
    "ytick.color": "#475569",
    "axes.grid": True,
    "axes.grid.axis": "y",
    "grid.color": "#e2e8f0",
    "legend.frameon": False,
    "lines.linewidth": 1.8,
    "lines.markersize": 3.5,
}
_MOST_CLASSES_IN_A_TABLE = 20
_MOST_PAIRS = 12
_MOST_CLASSES_LISTED = 100
_SMALLEST_PICTURE_PX = 600
_FULL_SHARE_RGB = np.array([29, 78, 216])  # a share of 0 is white


@dataclass(frozen=True, kw_only=True)
class Picture:
    """A picture within the page."""

    title: str
    source: str
    """A data URI."""
    text: str
    """The alternative text."""


@dataclass(frozen=True, kw_only=True)
class _Line:
    key: str
    label: str
    color: str
    style: str = "-"


_CHARTS: tuple[tuple[str, tuple[_Line, ...]], ...] = (
    (
        "Loss",
        (
            _Line(key="train_loss", label="training", color=GREY),
            _Line(key="val_loss", label="validation", color=BLUE),
            _Line(key="val_ema_loss", label="validation, averaged weights", color=GREEN, style="--"),
        ),
    ),
    (
        "Accuracy",
        (
            _Line(key="train_top1", label="training, top-1", color=GREY),
            _Line(key="val_top1", label="validation, top-1", color=BLUE),
            _Line(key="val_top5", label="validation, top-5", color=BLUE, style=":"),
            _Line(key="val_ema_top1", label="averaged weights, top-1", color=GREEN, style="--"),
        ),
    ),
    ("Learning rate", (_Line(key="lr", label="last step of the epoch", color=BLUE),)),
    ("Images per second", (_Line(key="train_images_per_second", label="training", color=BLUE),)),
)


def chart(title: str, text: str, draw: Callable[[Axes], None], size: tuple[float, float] = _SIZE_INCHES) -> Picture:
    """A chart as SVG: the same bytes for the same data.

    Args:
        title: stands above the chart.
        text: what it shows, for readers who can't see it.
        draw: draws on the axes.
        size: width and height in inches.
    """
    with rc_context(_STYLE):
        figure = Figure(figsize=size, layout="constrained")
        axes = figure.subplots()
        axes.tick_params(length=0)
        draw(axes)
        svg = drawn(figure, "svg", transparent=True, metadata={"Date": None})
    return Picture(title=title, source=f"data:image/svg+xml;base64,{base64.b64encode(svg).decode()}", text=text)


def training_curves(rows: Sequence[dict[str, Any]], *, has_top5: bool) -> tuple[Picture, ...]:
    """Loss, accuracy, learning rate and speed over the epochs; none before the first epoch ends.

    Args:
        rows: of metrics.jsonl.
        has_top5: whether there are so many classes that five guesses can miss.
    """
    if not rows:
        return ()
    if not has_top5:
        rows = [{key: value for key, value in row.items() if key != "val_top5"} for row in rows]
    return tuple(_curve(title, lines, rows) for title, lines in _CHARTS)


def _curve(title: str, lines: tuple[_Line, ...], rows: Sequence[dict[str, Any]]) -> Picture:
    shown = [line for line in lines if rows[-1].get(line.key) is not None]

    def draw(axes: Axes) -> None:
        for line in shown:
            points = [(row["epoch"], row[line.key]) for row in rows if row.get(line.key) is not None]
            marker = "o" if len(points) <= _MOST_MARKERS else None
            look: dict[str, Any] = {"color": line.color, "linestyle": line.style, "marker": marker, "label": line.label}
            axes.plot(*zip(*points, strict=True), clip_on=False, **look)
        axes.set_xlabel("epoch")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.margins(x=0.02)
        if title == "Accuracy":
            axes.yaxis.set_major_formatter(PercentFormatter(xmax=1))
        else:
            axes.set_ylim(bottom=0)
        if len(shown) > 1:
            axes.legend(fontsize=8)

    last = ", ".join(f"{line.label} {rows[-1][line.key]:.4g}" for line in shown)
    return chart(title, f"{title} over {len(rows)} epochs; in the last one: {last}", draw)


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
    """The confusion matrix and the metrics per class of an evaluation."""

    classes: tuple[str, ...]
    cells: tuple[tuple[Cell, ...], ...]
    """Rows are the truth; empty where there are too many classes for a table."""
    picture: str | None
    """A data URI of the matrix where there are too many classes for a table."""
    pairs: tuple[Pair, ...]
    """The most frequent confusions, at most 12."""
    per_class: tuple[dict[str, Any], ...]
    """Class, precision, recall, f1, support; of very many classes those with the lowest F1."""
    num_classes: int


def confusions(evaluation: dict[str, Any] | None) -> Confusions | None:
    """The classes in the evaluation of a run (evaluation/metrics.json); None where there is none."""
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
        picture=None if is_table else _matrix_picture(shares_of_rows(found.for_picture())),
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


def _matrix_picture(shares: npt.NDArray[np.float64]) -> str:
    """One square per entry, white for 0; the square root makes rare confusions visible."""
    depth = np.sqrt(shares)[..., None]
    pixels = np.rint(255 + depth * (_FULL_SHARE_RGB - 255)).astype(np.uint8)
    scale = -(-_SMALLEST_PICTURE_PX // len(shares))
    image = Image.fromarray(pixels).resize((len(shares) * scale, len(shares) * scale), Image.Resampling.NEAREST)
    buffer = io.BytesIO()
    image.quantize(64).save(buffer, format="PNG", optimize=True)
    return f"data:image/png;base64,{base64.b64encode(buffer.getvalue()).decode()}"
