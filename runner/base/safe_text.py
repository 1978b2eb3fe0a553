"""Text that can be passed on: addresses without their passwords, tables whose cells no spreadsheet carries out."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

MASK = "***"
# RFC 3986, 3.2.1: what stands before the @ of an authority; the password is all of it after the first colon.
# Read from the :// on: a pattern that begins with any length of a scheme takes quadratic time over a long word.
_USERINFO = re.compile(r"(?<=[A-Za-z0-9+.-])://[^\s/?#'\"@]+@")


# What makes a spreadsheet take a cell for a formula (OWASP, "CSV Injection").
_FORMULA_BEGINNINGS = ("=", "+", "-", "@", "\t", "\r", "\n")


def masked(text: str) -> str:
    """A text without the user information of the addresses in it."""
    return _USERINFO.sub(f"://{MASK}@", text)


def masked_values(value: Any) -> Any:  # noqa: ANN401 - whatever JSON can hold
    """The same of all texts in nested plain values."""
    if isinstance(value, str):
        return masked(value)
    if isinstance(value, Mapping):
        return {key: masked_values(child) for key, child in value.items()}
    if isinstance(value, list | tuple):
        return [masked_values(child) for child in value]
    return value


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
