"""The curves of a training, as SVG without scripts."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, PercentFormatter

from runner.evaluation.drawing import drawn

_SIZE_INCHES = (4.6, 2.5)
_VALIDATION, _TRAINING, _AVERAGE = "#1d4ed8", "#94a3b8", "#059669"
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


@dataclass(frozen=True, kw_only=True)
class Picture:
    """A picture within the page."""

    title: str
    source: str
    """A data URI."""
    text: str
    """What a reader who can't see it should know."""


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
            _Line(key="train_loss", label="training", color=_TRAINING),
            _Line(key="val_loss", label="validation", color=_VALIDATION),
            _Line(key="val_ema_loss", label="validation, averaged weights", color=_AVERAGE, style="--"),
        ),
    ),
    (
        "Accuracy",
        (
            _Line(key="train_top1", label="training, top-1", color=_TRAINING),
            _Line(key="val_top1", label="validation, top-1", color=_VALIDATION),
            _Line(key="val_top5", label="validation, top-5", color=_VALIDATION, style=":"),
            _Line(key="val_ema_top1", label="averaged weights, top-1", color=_AVERAGE, style="--"),
        ),
    ),
    ("Learning rate", (_Line(key="lr", label="last step of the epoch", color=_VALIDATION),)),
    ("Images per second", (_Line(key="train_images_per_second", label="training", color=_VALIDATION),)),
)


def curves(rows: Sequence[dict[str, Any]], *, has_top5: bool) -> tuple[Picture, ...]:
    """Loss, accuracy, learning rate and speed over the epochs; none before the first epoch ends.

    Args:
        rows: of metrics.jsonl.
        has_top5: whether there are so many classes that five guesses can miss.
    """
    if not rows:
        return ()
    if not has_top5:
        rows = [{key: value for key, value in row.items() if key != "val_top5"} for row in rows]
    with rc_context(_STYLE):
        return tuple(_picture(title, lines, rows) for title, lines in _CHARTS)


def _picture(title: str, lines: tuple[_Line, ...], rows: Sequence[dict[str, Any]]) -> Picture:
    figure = Figure(figsize=_SIZE_INCHES, layout="constrained")
    axes = figure.subplots()
    shown = [line for line in lines if rows[-1].get(line.key) is not None]
    for line in shown:
        points = [(row["epoch"], row[line.key]) for row in rows if row.get(line.key) is not None]
        marker = "o" if len(points) <= _MOST_MARKERS else None
        look: dict[str, Any] = {"color": line.color, "linestyle": line.style, "marker": marker, "label": line.label}
        axes.plot(*zip(*points, strict=True), clip_on=False, **look)
    _finish(axes, is_share=title == "Accuracy", num_lines=len(shown))
    svg = drawn(figure, "svg", transparent=True, metadata={"Date": None})
    last = ", ".join(f"{line.label} {rows[-1][line.key]:.4g}" for line in shown)
    encoded = base64.b64encode(svg).decode()
    return Picture(
        title=title,
        source=f"data:image/svg+xml;base64,{encoded}",
        text=f"{title} over {len(rows)} epochs; in the last one: {last}",
    )


def _finish(axes: Axes, *, is_share: bool, num_lines: int) -> None:
    axes.set_xlabel("epoch")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.tick_params(length=0)
    axes.margins(x=0.02)
    if is_share:
        axes.yaxis.set_major_formatter(PercentFormatter(xmax=1))
    else:
        axes.set_ylim(bottom=0)
    if num_lines > 1:
        axes.legend(fontsize=8)
