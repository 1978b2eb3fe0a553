"""Tables of plain text: columns that line up, also with wide letters and emoji, and are never cut."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.cells import cell_len

_GAP = "  "


def as_table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Left-aligned columns; control characters, such as a newline in a name, are shown as escapes."""
    lines = [tuple(head), *(tuple(_visible(cell) for cell in row) for row in rows)]
    widths = [max(map(cell_len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        _GAP.join(cell + " " * (width - cell_len(cell)) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    )


def _visible(text: str) -> str:
    return "".join(letter if letter.isprintable() else letter.encode("unicode_escape").decode() for letter in text)
