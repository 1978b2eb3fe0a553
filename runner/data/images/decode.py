"""Decodes image files to RGB pixels.

Conventions, which apply to a packaged model as well:
- The orientation of EXIF, TIFF or XMP is applied.
- Transparent pixels are composited over white.
- 16-bit grey is scaled, 0 … 65535 to 0 … 255, not clipped. Pillow returns some 16-bit files as 32-bit integers, so
  these count as 16-bit; 32-bit floats count as 0 … 1. Values outside of these ranges raise an error: scaling each image
  by its own extremes would make images incomparable.
- CMYK is converted without a colour profile, as Pillow and torchvision do; Pillow undoes Adobe's inversion in JPEGs.
- The first frame of an animation is used.
"""

from __future__ import annotations

import errno
import os
import re
import struct
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from threading import Lock
from typing import BinaryIO

import numpy as np
import numpy.typing as npt
from PIL import ExifTags, Image, UnidentifiedImageError

from runner.base.errors import DeviceError, InvalidDatasetError
from runner.base.reasons import reason_of
from runner.base.untrusted import UntrustedFileError, open_regular
from runner.config.schema.data import MOST_PIXELS
from runner.data.images import jpeg
from runner.data.images.stored import DecodedImage, Pixels, StoredImage
from runner.data.sources.index import printable_path

# The format follows from the content, as extensions are often wrong. Some of Pillow's other formats start programs.
_FORMATS = ("JPEG", "PNG", "WEBP", "TIFF", "BMP", "PPM", "GIF")
# Larger files are left to Pillow, which does not read them into memory as a whole.
_MOST_JPEG_BYTES = 512 * 2**20
_MOST_HEADER_BYTES = 1 << 16
# A PPM header without its end: it lacks the last of three numbers (of two for bitmaps, P1 and P4).
_GAP = rb"(?:\s++|#[^\r\n]*+[\r\n]?+)++"
_UNFINISHED_PPM = re.compile(rb"P(?:[14](?:%b[^\s#]++){0,1}+|[^14](?:%b[^\s#]++){0,2}+)(?:%b)?+" % (_GAP, _GAP, _GAP))
_SILENCE = Lock()
# EXIF orientations that exchange height and width.
_ON_THEIR_SIDE = (5, 6, 7, 8)
# Temporary faults, which are no property of the image: an image that was skipped for them would not be skipped always.
FAULTS_OF_THE_MACHINE = frozenset(
    {
        errno.EIO,
        errno.ESTALE,
        errno.ETIMEDOUT,
        errno.EMFILE,
        errno.ENFILE,
        errno.ENOMEM,
        errno.ENODEV,
        errno.ENXIO,
        errno.ENOTCONN,
        errno.EHOSTDOWN,
        errno.EHOSTUNREACH,
    }
)


def decode_image(path: str, max_pixels: int = MOST_PIXELS) -> Pixels:
    """The pixels of an image file, uint8 RGB, shape (height, width, 3), writable; see :func:`open_image`."""
    return open_image(path, max_pixels).pixels()


def open_image(path: str, max_pixels: int = MOST_PIXELS) -> StoredImage:
    """Open an image file; a JPEG is decoded later, other formats at once.

    Args:
        path: of the file.
        max_pixels: largest width × height; compared with the file's header before anything is decoded.

    Raises:
        InvalidDatasetError: the file is missing, may not be read, is empty, truncated or not an image, or has too many
            pixels. A damaged JPEG raises it when it is decoded.
        DeviceError: the file can't be read because of a fault of the machine, such as a failing disk or network.
    """
    with _named_errors(path), open_regular(path) as file:
        content = _content_of_jpeg(file)
        header = jpeg.read_header(content) if content is not None else None
        if content is None or header is None:
            file.seek(0)
            return DecodedImage(_decoded_by_pillow(file, max_pixels))
        _refuse_large(header.width, header.height, max_pixels)
        return _Jpeg(path, content, header, _orientation_of(content), max_pixels)


def bytes_once_decoded(path: str) -> int:
    """Bytes of the RGB pixels of an image file, computed from its header.

    Raises:
        InvalidDatasetError: as :func:`open_image`, for errors in the header.
        DeviceError: as :func:`open_image`.
    """
    with _named_errors(path), open_regular(path) as file:
        _refuse_endless_header(file)
        with _unwarned(), Image.open(file, formats=_FORMATS) as image:
            return image.width * image.height * 3


@dataclass(frozen=True)
class _Jpeg:
    """A JPEG file in memory, not decoded."""

    path: str
    content: bytes
    header: jpeg.Header
    orientation: int
    max_pixels: int

    @property
    def height(self) -> int:
        return self.header.width if self.orientation in _ON_THEIR_SIDE else self.header.height

    @property
    def width(self) -> int:
        return self.header.height if self.orientation in _ON_THEIR_SIDE else self.header.width

    def pixels(self, reduction: int = 1) -> Pixels:
        stored = jpeg.decode(self.content, self.header, reduction)
        if stored is not None:
            return _upright(stored, self.orientation)
        with _named_errors(self.path):
            return _decoded_by_pillow(BytesIO(self.content), self.max_pixels)


def _content_of_jpeg(file: BinaryIO) -> bytes | None:
    """The file's content, if it begins like a JPEG and is small enough for memory."""
    start = file.read(len(jpeg.START))
    if start != jpeg.START or os.fstat(file.fileno()).st_size > _MOST_JPEG_BYTES:
        return None
    return start + file.read()


def _orientation_of(content: bytes) -> int:
    if not jpeg.may_be_turned(content):
        return 1
    with _unwarned(), Image.open(BytesIO(content), formats=_FORMATS) as image:
        return _orientation(image)


def _decoded_by_pillow(file: BinaryIO, max_pixels: int) -> Pixels:
    _refuse_endless_header(file)
    with _unwarned(), Image.open(file, formats=_FORMATS) as image:
        _refuse_large(*image.size, max_pixels)
        return to_rgb(image)


def _refuse_endless_header(file: BinaryIO) -> None:
    """Pillow reads the comments of a PPM byte by byte, which takes minutes for hundreds of megabytes."""
    head = file.read(_MOST_HEADER_BYTES)
    file.seek(0)
    if len(head) == _MOST_HEADER_BYTES and _UNFINISHED_PPM.fullmatch(head):
        raise ValueError(f"its header has more than {_MOST_HEADER_BYTES:,} bytes")


@contextmanager
def _unwarned() -> Iterator[None]:
    """Suppresses Pillow's warnings about single files, which are useless for a data set of a million."""
    # Warning filters are global, and two threads would undo each other's setting.
    with _SILENCE, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@contextmanager
def _named_errors(path: str) -> Iterator[None]:
    try:
        yield
    except MemoryError:
        raise
    # Pillow's decoders raise nearly anything for damaged files, from OSError and SyntaxError to struct.error.
    except Exception as error:
        if isinstance(error, OSError) and error.errno in FAULTS_OF_THE_MACHINE:
            raise DeviceError(f"{printable_path(path)}: can't be read at this moment: {reason_of(error)}") from error
        raise InvalidDatasetError(f"{printable_path(path)}: {_reason(error, path)}") from error


def _refuse_large(width: int, height: int, max_pixels: int) -> None:
    if width * height > max_pixels:
        raise Image.DecompressionBombError(
            f"{width} × {height} = {width * height:,}, more than data.max_pixels = {max_pixels:,}"
        )


def to_rgb(image: Image.Image) -> Pixels:
    """The pixels of a Pillow image of any mode, by the conventions of this module.

    Returns:
        uint8 RGB, shape (height, width, 3), writable.

    Raises:
        ValueError: values are outside of the range of the mode.
    """
    image.load()
    return _upright(_rgb_as_stored(image), _orientation(image))


def _rgb_as_stored(image: Image.Image) -> Pixels:
    match image.mode:
        case "I;16" | "I;16L" | "I;16B" | "I;16N" | "I":
            return _rgb_from_grey(np.asarray(image), 65535)
        case "F":
            return _rgb_from_grey(np.asarray(image), 1)
        case _ if image.has_transparency_data:
            canvas = Image.new("RGBA", image.size, "white")
            canvas.alpha_composite(image.convert("RGBA"))
            return np.array(canvas.convert("RGB"))
        case "RGB":
            return np.array(image)
        case _:
            return np.array(image.convert("RGB"))


def _rgb_from_grey(values: npt.NDArray[np.generic], largest: int) -> Pixels:
    numbers = values.astype(np.float64)
    low, high = numbers.min(), numbers.max()
    # NaN fails this condition, too.
    if not (low >= 0 and high <= largest):
        raise ValueError(
            f"pixel values from {low:g} to {high:g}, where {values.dtype} must be within 0 … {largest}; "
            "convert it to 8 bits per channel"
        )
    return np.repeat(np.rint(numbers * (255 / largest)).astype(np.uint8)[:, :, np.newaxis], 3, axis=2)


def _orientation(image: Image.Image) -> int:
    try:
        return int(image.getexif().get(ExifTags.Base.Orientation, 1))
    except (SyntaxError, ValueError, TypeError, struct.error, OSError):
        # With damaged EXIF the orientation is unknown, but the pixels are intact.
        return 1


def _upright(pixels: Pixels, orientation: int) -> Pixels:
    """Undo an EXIF orientation (CIPA DC-008, tag 0x0112)."""
    match orientation:
        case 2:
            turned = pixels[:, ::-1]
        case 3:
            turned = pixels[::-1, ::-1]
        case 4:
            turned = pixels[::-1]
        case 5:
            turned = pixels.transpose(1, 0, 2)
        case 6:
            turned = np.rot90(pixels, k=-1)
        case 7:
            turned = pixels[::-1, ::-1].transpose(1, 0, 2)
        case 8:
            turned = np.rot90(pixels)
        case _:
            return pixels
    return np.ascontiguousarray(turned)


def _reason(error: Exception, path: str) -> str:
    match error:
        case UntrustedFileError():
            return "this is not a regular file"
        case UnidentifiedImageError():
            if Path(path).stat().st_size == 0:
                return "the file is empty (0 bytes)"
            return f"this is no image: its content is none of {', '.join(_FORMATS)}"
        case Image.DecompressionBombError():
            return f"too many pixels: {error}"
        case OSError() if error.errno is not None:
            return f"can't be opened: {reason_of(error)}"
        case _:
            return f"the image is damaged or of an unknown kind: {error or type(error).__name__}"
