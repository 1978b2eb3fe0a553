"""CSV that a spreadsheet only shows and never runs."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence

# What makes a spreadsheet take a cell for a formula (OWASP, "CSV Injection").
_FORMULA_BEGINNINGS = ("=", "+", "-", "@", "\t", "\r", "\n")


def neutral(text: str) -> str:
    """A text as a cell: one that begins with = + - @, tab or a line break gets an apostrophe in front."""
    return f"'{text}" if text.startswith(_FORMULA_BEGINNINGS) else text


def csv_lines(rows: Iterable[Sequence[object]]) -> str:
    """Rows as CSV (RFC 4180, but with line feeds); texts are neutralised, numbers stay, None is an empty cell."""
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerows([neutral(cell) if isinstance(cell, str) else cell for cell in row] for row in rows)
    return buffer.getvalue()


def nine_digits(value: float) -> float:
    """A float32 value as short as can be: nine digits tell each from its neighbours."""
    return float(f"{value:.9g}")
