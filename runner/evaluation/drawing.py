"""The only place where a figure of matplotlib's becomes a file.

Labels hold names of classes, keys and metrics, which anybody may have chosen: a `$` in them begins no formula, which
would end the drawing where it is none.
"""

from __future__ import annotations

import io
import warnings
from typing import Any

from matplotlib import rc_context
from matplotlib.figure import Figure
from matplotlib.text import Text


def drawn(figure: Figure, kind: str, **options: Any) -> bytes:  # noqa: ANN401 - matplotlib's own options
    """A figure as a file, all of its texts as they are written.

    Args:
        figure: not yet drawn.
        kind: png or svg.
        options: those of :meth:`matplotlib.figure.Figure.savefig`.
    """
    buffer = io.BytesIO()
    for text in figure.findobj(Text):
        assert isinstance(text, Text)
        text.set_parse_math(False)
    # Labels of ticks are made while it is drawn.
    with rc_context({"text.parse_math": False, "text.usetex": False}), warnings.catch_warnings():
        # Names in scripts that the font lacks are drawn as boxes; the tables have them right.
        warnings.filterwarnings("ignore", "Glyph .* missing from font")
        figure.savefig(buffer, format=kind, **options)
    return buffer.getvalue()
