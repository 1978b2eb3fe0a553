"""Draws matplotlib figures to bytes, and the picture of a confusion matrix.

Labels hold names of classes, keys and metrics that users chose. A `$` in them must not start a formula, because
matplotlib fails on one that it can't parse.
"""

from __future__ import annotations

import io
import warnings
from typing import Any

import numpy as np
from matplotlib import rc_context
from matplotlib.figure import Figure
from matplotlib.text import Text

from runner.evaluation.confusion import Confusion, shares_of_rows

_MAX_NUMBERED = 25  # with more classes numbers would not fit into the cells
_MAX_NAMED = 60  # with more classes names would overlap
_MAX_NAME_LENGTH = 24
_CELL_INCHES = 0.42
_MOST_INCHES = 16.0


def drawn(figure: Figure, kind: str, **options: Any) -> bytes:  # noqa: ANN401 - matplotlib's own options
    """The bytes of a figure's file; its texts are drawn literally.

    Args:
        figure: not yet drawn.
        kind: png or svg.
        options: for :meth:`matplotlib.figure.Figure.savefig`.
    """
    buffer = io.BytesIO()
    for text in figure.findobj(Text):
        assert isinstance(text, Text)
        text.set_parse_math(False)
    # The labels of ticks are created while the figure is drawn.
    with rc_context({"text.parse_math": False, "text.usetex": False}), warnings.catch_warnings():
        # Names in scripts that the font lacks are drawn as boxes; the tables show them right.
        warnings.filterwarnings("ignore", "Glyph .* missing from font")
        figure.savefig(buffer, format=kind, **options)
    return buffer.getvalue()


def confusion_png(confusion: Confusion, classes: tuple[str, ...]) -> bytes:
    """A confusion matrix as PNG: true classes in rows, coloured by the fraction of the row.

    Up to 25 classes the cells hold the counts, up to 60 the axes hold the names of the classes; with more than 1,000
    classes, neighbouring ones share a cell.
    """
    num_classes = len(classes)
    side = float(np.clip(num_classes * _CELL_INCHES, 3.0, _MOST_INCHES - 3.0))
    figure = Figure(figsize=(side + 3.0, side + 2.0), layout="constrained")
    axes = figure.add_subplot()
    matrix = confusion.for_picture()
    shares = shares_of_rows(matrix)
    first, last = -0.5, num_classes - 0.5
    shown = axes.imshow(
        shares, cmap="Blues", vmin=0, vmax=1, interpolation="nearest", extent=(first, last, last, first)
    )
    figure.colorbar(shown, ax=axes, label="share of the class", shrink=0.8)
    axes.set(xlabel="predicted", ylabel="true")
    if num_classes <= _MAX_NAMED:
        names = [_shortened(name) for name in classes]
        axes.set_xticks(range(num_classes), names, rotation=90)
        axes.set_yticks(range(num_classes), names)
    if num_classes <= _MAX_NUMBERED:
        for (row, column), count in np.ndenumerate(matrix):
            colour = "white" if shares[row, column] > 0.5 else "black"
            axes.text(column, row, f"{count}" if count else "", ha="center", va="center", color=colour, fontsize=8)
    return drawn(figure, "png")


def _shortened(name: str) -> str:
    # A line break in a name would move all other names.
    plain = " ".join(name.split())
    return plain if len(plain) <= _MAX_NAME_LENGTH else plain[: _MAX_NAME_LENGTH - 1] + "…"
