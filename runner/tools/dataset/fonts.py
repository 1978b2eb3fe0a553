"""Fonts for names in any script."""

from __future__ import annotations

import functools
from pathlib import Path

import matplotlib as mpl
from matplotlib import font_manager
from matplotlib.ft2font import FT2Font
from PIL import ImageFont


def fitting(text: str, size: int) -> tuple[str, ImageFont.FreeTypeFont]:
    """A text as it can be drawn, and a font that has all its characters.

    DejaVu, which comes with matplotlib, has most alphabets; for others the installed fonts are looked through. What no
    font has, and what can't be seen, such as a line break, becomes an escape like \\u4e2d.

    Args:
        text: what is to be drawn, on one line.
        size: in pixels.
    """
    plain = "".join(character if character.isprintable() else _escaped(character) for character in text)
    needed = frozenset(map(ord, plain))
    if not needed <= _characters(_dejavu()):
        for path in _installed():
            if needed <= _characters(path):
                return plain, ImageFont.truetype(path, size)
        has = _characters(_dejavu())
        plain = "".join(character if ord(character) in has else _escaped(character) for character in plain)
    return plain, ImageFont.truetype(_dejavu(), size)


def _escaped(character: str) -> str:
    return character.encode("unicode_escape", errors="surrogatepass").decode("ascii")


def _dejavu() -> str:
    return str(Path(mpl.get_data_path(), "fonts", "ttf", "DejaVuSans.ttf"))


@functools.cache
def _installed() -> tuple[str, ...]:
    """In the order of their names, so that the same machine draws the same picture."""
    return tuple(sorted(font_manager.findSystemFonts()))


@functools.cache
def _characters(path: str) -> frozenset[int]:
    try:
        font = FT2Font(path)
        # Fonts of fixed pictures, as for emoji, can't be drawn at any size.
        return frozenset(font.get_charmap()) if font.scalable else frozenset()
    except (OSError, RuntimeError):
        return frozenset()
