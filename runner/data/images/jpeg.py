"""JPEG by libjpeg-turbo: the same pixels as Pillow's in less time, and smaller images straight from the file.

Pillow decodes by the same library with the same settings (accurate DCT, smooth chroma), so the pixels are equal to the
last bit; what it adds is work in Python and copies. Where libjpeg-turbo finds anything odd, Pillow has the last word.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import simplejpeg

from runner.data.images.stored import Pixels

START = b"\xff\xd8\xff"
"""How a JPEG begins."""
# CMYK is left to Pillow, which knows that Adobe inverts it.
_COLOURS = ("RGB", "YCbCr", "Gray")


@dataclass(frozen=True)
class Header:
    """What the header of a JPEG says, in pixels as stored, before any turning."""

    height: int
    width: int


def read_header(content: bytes) -> Header | None:
    """The header of a JPEG; None where this decoder is not for it."""
    try:
        height, width, colours, _ = simplejpeg.decode_jpeg_header(content)
    except ValueError:
        return None
    return Header(height, width) if colours in _COLOURS else None


def may_be_turned(content: bytes) -> bool:
    """Whether there is anything in the file that may give it an orientation: EXIF or XMP."""
    return b"Exif\x00" in content or b"http://ns.adobe.com/xap/" in content


def decode(content: bytes, header: Header, reduction: int) -> Pixels | None:
    """The pixels as stored; None where the file is damaged, however slightly.

    Reduced images come from the low frequencies of each block of 8 × 8 pixels (the scaled inverse DCT of libjpeg), so
    they are close to, but not the same as, the mean of the pixels that they stand for.

    Args:
        content: of the file.
        header: of the same.
        reduction: 1, 2, 4 or 8, of height and width.

    Returns:
        uint8 RGB, shape (⌈height / reduction⌉, ⌈width / reduction⌉, 3), writable.
    """
    try:
        pixels: Pixels = simplejpeg.decode_jpeg(
            content, "RGB", min_height=-(-header.height // reduction), min_width=-(-header.width // reduction)
        )
    except ValueError:
        return None
    return np.asarray(pixels)
