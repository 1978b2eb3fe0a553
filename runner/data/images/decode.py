"""Decodes image files to pixels: grey, RGB or RGBA.

Conventions, which apply to a packaged model as well:
- The orientation of EXIF, TIFF or XMP is applied.
- Of 1 or 3 channels transparent pixels are composited over white. Of 4 channels the fourth is that of the file, or 255
  where it has none; CMYK is refused then, as ink is no alpha, and so is a TIFF whose fourth channel Pillow leaves out.
- Colours become grey as ITU-R 601-2 luma, by Pillow.
- 16-bit grey is scaled, 0 … 65535 to 0 … 255, not clipped; with 16 bits it stays as it is, and files of 8 bits are
  scaled up, 0 … 255 to 0 … 65535. Pillow returns some 16-bit files as 32-bit integers, so these count as 16-bit; 32-bit
  floats count as 0 … 1. Values outside of these ranges raise an error: scaling each image by its own extremes would
  make images incomparable. Colours of 16 bits are read by Pillow as 8 bits.
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
from PIL import ExifTags, Image, TiffImagePlugin, UnidentifiedImageError

from runner.base.errors import DeviceError, InvalidDatasetError
from runner.base.reasons import reason_of
from runner.base.untrusted import UntrustedFileError, open_regular
from runner.config.schema.data import MOST_PIXELS
from runner.data.images import jpeg
from runner.data.images.stored import RGB, DecodedImage, InputFormat, Pixels, StoredImage
from runner.data.sources.index import printable_path

# The format follows from the content, as extensions are often wrong. Some of Pillow's other formats start programs.
_FORMATS = ("JPEG", "PNG", "WEBP", "TIFF", "BMP", "PPM", "GIF")
# Larger files are left to Pillow, which does not read them into memory as a whole.
_MOST_JPEG_BYTES = 512 * 2**20
_MOST_HEADER_BYTES = 1 << 16
# A PPM header without its end: it lacks the last of three numbers (of two for bitmaps, P1 and P4).
_GAP = rb"(?:\s++|#[^\r\n]*+[\r\n]?+)++"
_UNFINISHED_PPM = re.compile(rb"P(?:[14](?:%b[^\s#]++){0,1}+|[^14](?:%b[^\s#]++){0,2}+)(?:%b)?+" % (_GAP, _GAP, _GAP))
_EMPTY = "the file is empty (0 bytes)"
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


def decode_image(path: str, max_pixels: int = MOST_PIXELS, form: InputFormat = RGB) -> Pixels:
    """The pixels of an image file, writable; see :func:`open_image` and :func:`to_pixels`."""
    return open_image(path, max_pixels, form).pixels()


def open_image(path: str, max_pixels: int = MOST_PIXELS, form: InputFormat = RGB) -> StoredImage:
    """Open an image file; a JPEG is decoded later, other formats at once.

    Args:
        path: of the file.
        max_pixels: largest width × height; compared with the file's header before anything is decoded.
        form: channels and bits of the pixels.

    Raises:
        InvalidDatasetError: the file is missing, may not be read, is empty, truncated or not an image, or has too many
            pixels. A damaged JPEG raises it when it is decoded.
        DeviceError: the file can't be read because of a fault of the machine, such as a failing disk or network.
    """
    with _named_errors(path), open_regular(path) as file:
        return _opened(path, _content_of_jpeg(file), file, max_pixels, form)


def open_received(content: bytes, name: str, max_pixels: int = MOST_PIXELS, form: InputFormat = RGB) -> StoredImage:
    """As :func:`open_image` for an image file that is in memory, such as one that a client has sent.

    Args:
        content: of the file.
        name: what messages call it.
        max_pixels: as of :func:`open_image`.
        form: as of :func:`open_image`.

    Raises:
        InvalidDatasetError: as :func:`open_image`.
    """
    if not content:
        raise InvalidDatasetError(f"{printable_path(name)}: {_EMPTY}")
    with _named_errors(name):
        return _opened(name, content if content.startswith(jpeg.START) else None, BytesIO(content), max_pixels, form)


def _opened(path: str, jpeg_content: bytes | None, file: BinaryIO, max_pixels: int, form: InputFormat) -> StoredImage:
    header = jpeg.read_header(jpeg_content) if jpeg_content is not None else None
    if jpeg_content is None or header is None:
        file.seek(0)
        return DecodedImage(_decoded_by_pillow(file, max_pixels, form))
    _refuse_large(header.width, header.height, max_pixels)
    return _Jpeg(path, jpeg_content, header, _orientation_of(jpeg_content), max_pixels, form)


def bytes_once_decoded(path: str, form: InputFormat = RGB) -> int:
    """Bytes of the pixels of an image file, computed from its header.

    Raises:
        InvalidDatasetError: as :func:`open_image`, for errors in the header.
        DeviceError: as :func:`open_image`.
    """
    with _named_errors(path), open_regular(path) as file:
        _refuse_endless_header(file)
        with _unwarned(), Image.open(file, formats=_FORMATS) as image:
            return image.width * image.height * form.decoded_bytes


@dataclass(frozen=True)
class _Jpeg:
    """A JPEG file in memory, not decoded."""

    path: str
    content: bytes
    header: jpeg.Header
    orientation: int
    max_pixels: int
    form: InputFormat

    @property
    def height(self) -> int:
        return self.header.width if self.orientation in _ON_THEIR_SIDE else self.header.height

    @property
    def width(self) -> int:
        return self.header.height if self.orientation in _ON_THEIR_SIDE else self.header.width

    def pixels(self, reduction: int = 1) -> Pixels:
        as_grey = self.form.channels == 1 and self.header.is_grey
        stored = jpeg.decode(self.content, self.header, reduction, as_grey=as_grey)
        if stored is not None:
            in_form = stored if self.form == RGB or as_grey else _from_rgb(stored, self.form)
            return _upright(_deepened(in_form, self.form), self.orientation)
        with _named_errors(self.path):
            return _decoded_by_pillow(BytesIO(self.content), self.max_pixels, self.form)


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


def _decoded_by_pillow(file: BinaryIO, max_pixels: int, form: InputFormat) -> Pixels:
    _refuse_endless_header(file)
    with _unwarned(), Image.open(file, formats=_FORMATS) as image:
        _refuse_large(*image.size, max_pixels)
        return to_pixels(image, form)


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


def to_pixels(image: Image.Image, form: InputFormat = RGB) -> Pixels:
    """The pixels of a Pillow image of any mode, by the conventions of this module.

    Returns:
        uint8 or, of 16 bits, uint16; shape (height, width, channels), writable.

    Raises:
        ValueError: values are outside of the range of the mode, or it has no such channels.
    """
    image.load()
    return _upright(_as_stored(image, form), _orientation(image))


def _as_stored(image: Image.Image, form: InputFormat) -> Pixels:
    match image.mode:
        case "I;16" | "I;16L" | "I;16B" | "I;16N" | "I":
            return _from_grey(np.asarray(image), 65535, form)
        case "F":
            return _from_grey(np.asarray(image), 1, form)
        case _ if form.channels == 4:
            _refuse_other_fourth_channels(image)
            return np.array(image.convert("RGBA"))
        case _ if image.has_transparency_data:
            canvas = Image.new("RGBA", image.size, "white")
            canvas.alpha_composite(image.convert("RGBA"))
            image = canvas.convert("RGB")
    if form.channels == 3:
        return np.array(image if image.mode == "RGB" else image.convert("RGB"))
    # Other modes than grey by way of RGB, as JPEGs are converted.
    grey = image if image.mode == "L" else image.convert("RGB").convert("L")
    return _deepened(np.array(grey)[:, :, np.newaxis], form)


def _refuse_other_fourth_channels(image: Image.Image) -> None:
    if image.mode == "CMYK":
        raise ValueError("its fourth channel is the black ink of CMYK; convert it to RGBA, or use data.channels=3")
    if not isinstance(image, TiffImagePlugin.TiffImageFile) or image.mode != "RGB":
        return
    if image.tag_v2.get(TiffImagePlugin.SAMPLESPERPIXEL, 3) > 3:
        raise ValueError(
            "Pillow leaves out its fourth channel, of which the file does not say what it is (TIFF's ExtraSamples is "
            "0); write it with ExtraSamples = 2, or use data.channels=3"
        )


def _from_rgb(pixels: Pixels, form: InputFormat) -> Pixels:
    """Grey or RGBA pixels from RGB of 8 bits."""
    mode = "L" if form.channels == 1 else "RGBA"
    converted: Pixels = np.array(Image.fromarray(pixels).convert(mode))
    return converted.reshape(*pixels.shape[:2], form.channels)


def _deepened(pixels: Pixels, form: InputFormat) -> Pixels:
    """Pixels of 8 bits in the bits of the format; 255 × 257 = 65535."""
    return pixels if form.bit_depth == 8 else pixels.astype(np.uint16) * np.uint16(257)


def _from_grey(values: npt.NDArray[np.generic], largest: int, form: InputFormat) -> Pixels:
    numbers = values.astype(np.float64)
    low, high = numbers.min(), numbers.max()
    # NaN fails this condition, too.
    if not (low >= 0 and high <= largest):
        raise ValueError(
            f"pixel values from {low:g} to {high:g}, where {values.dtype} must be within 0 … {largest}; "
            "convert it to 8 bits per channel"
        )
    if form.bit_depth == 16:
        return np.rint(numbers * (65535 / largest)).astype(np.uint16)[:, :, np.newaxis]
    grey = np.rint(numbers * (255 / largest)).astype(np.uint8)[:, :, np.newaxis]
    if form.channels == 4:
        opaque = np.full_like(grey, 255)
        return np.concatenate((grey, grey, grey, opaque), axis=2)
    return np.repeat(grey, form.channels, axis=2)


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
            if Path(path).is_file() and Path(path).stat().st_size == 0:
                return _EMPTY
            return f"this is no image: its content is none of {', '.join(_FORMATS)}"
        case Image.DecompressionBombError():
            return f"too many pixels: {error}"
        case OSError() if error.errno is not None:
            return f"can't be opened: {reason_of(error)}"
        case _:
            return f"the image is damaged or of an unknown kind: {error or type(error).__name__}"
