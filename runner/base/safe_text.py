"""Text that is safe to pass on: URLs without credentials, CSV cells that no spreadsheet takes for formulas."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

MASK = "***"
# RFC 3986, 3.2.1: the user information before the @ of an authority. The match begins at ://, since a pattern that
# begins with a scheme of any length takes quadratic time over a long word.
# A password in which / ? # or @ were not written as %2F and so on counts up to the last @, in up to 1,000 characters: a
# colon that digits and a slash follow begins a port.
_NAME_AND_COLON = r"[^\s/?#'\"@:\[]*:(?!\d*(?:[/?#\s'\"]|$))"
_USERINFO = re.compile(rf"(?<=[A-Za-z0-9+.-])://(?:{_NAME_AND_COLON}(?:(?!://)[^\s'\"]){{0,1000}}@|[^\s/?#'\"@]+@)")
# The same in a text that is an address as a whole, where quotes and spaces belong to it too.
_BEFORE_HOST = re.compile(rf"(\s*[A-Za-z][A-Za-z0-9+.-]{{0,40}}://){_NAME_AND_COLON}.*@", re.DOTALL)
# As database addresses may have it: postgresql://host/db?password=…
_PASSWORD_IN_QUERY = re.compile(r"(?<=[?&])((?:ssl)?password|passwd|pwd)=[^\s&#'\"]+", re.IGNORECASE)
# What precedes the query or fragment in a text that is an address as a whole.
_BEFORE_QUERY = re.compile(r"\s*[A-Za-z][A-Za-z0-9+.-]{0,40}://[^?#]*(?=[?#])")
# With these a spreadsheet takes a cell for a formula (OWASP, "CSV Injection").
_FORMULA_BEGINNINGS = ("=", "+", "-", "@", "\t", "\r", "\n")


def without_secrets(text: str) -> str:
    """A text that is an address with *** for its user information, query and fragment, which may be a signature."""
    text = _BEFORE_HOST.sub(rf"\1{MASK}@", text, count=1) if _BEFORE_HOST.match(text) else text
    address = _BEFORE_QUERY.match(text)
    return f"{address[0]}?{MASK}" if address else text


def mask_credentials(text: str) -> str:
    """A text with the user information, and the passwords in the queries, of the URLs in it replaced by ***."""
    return _PASSWORD_IN_QUERY.sub(rf"\1={MASK}", _USERINFO.sub(f"://{MASK}@", text))


def mask_credentials_in(value: Any) -> Any:  # noqa: ANN401 - whatever JSON can hold
    """Nested plain values with :func:`mask_credentials` applied to all texts."""
    if isinstance(value, str):
        return mask_credentials(value)
    if isinstance(value, Mapping):
        return {key: mask_credentials_in(child) for key, child in value.items()}
    if isinstance(value, list | tuple):
        return [mask_credentials_in(child) for child in value]
    return value


def escape_formula(text: str) -> str:
    """Put an apostrophe before a text that begins with = + - @, a tab or a line break."""
    return f"'{text}" if text.startswith(_FORMULA_BEGINNINGS) else text


def csv_lines(rows: Iterable[Sequence[object]]) -> str:
    """Rows as CSV (RFC 4180, but with line feeds), with :func:`escape_formula` for texts; None is an empty cell."""
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerows([escape_formula(cell) if isinstance(cell, str) else cell for cell in row] for row in rows)
    return buffer.getvalue()


def nine_digits(value: float) -> float:
    """Round a float32 value to nine significant digits, which identify it."""
    return float(f"{value:.9g}")
