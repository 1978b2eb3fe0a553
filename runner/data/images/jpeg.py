"""Decodes JPEGs with libjpeg-turbo: the same pixels as Pillow's in less time, optionally at reduced size.

Pillow uses the same library with the same settings (accurate DCT, smooth chroma), so the pixels are bit-identical; it
only adds overhead. Files for which libjpeg-turbo reports a problem are left to Pillow.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import simplejpeg

from runner.data.images.stored import Pixels

START = b"\xff\xd8\xff"
"""The first bytes of a JPEG."""
# CMYK is left to Pillow, which handles Adobe's inversion.
_COLOURS = ("RGB", "YCbCr", "Gray")


@dataclass(frozen=True)
class Header:
    """Height and width in pixels as stored, before the EXIF orientation is applied."""

    height: int
    width: int


def read_header(content: bytes) -> Header | None:
    """The header of a JPEG; None if Pillow must decode it."""
    try:
        height, width, colours, _ = simplejpeg.decode_jpeg_header(content)
    except ValueError:
        return None
    return Header(height, width) if colours in _COLOURS else None


def may_be_turned(content: bytes) -> bool:
    """Whether the file may have an orientation, because it contains EXIF or XMP."""
    return b"Exif\x00" in content or b"http://ns.adobe.com/xap/" in content


def decode(content: bytes, header: Header, reduction: int) -> Pixels | None:
    """The pixels as stored, before the EXIF orientation is applied; None if the file is damaged, however slightly.

    Reduced images come from the low frequencies of each block of 8 × 8 pixels (libjpeg's scaled inverse DCT), so their
    pixels are close to, but not equal to, means of pixels of the full image.

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
