"""Looks at one image of a data set: whether it can be read, what it is, and a digest of its content."""

from __future__ import annotations

import hashlib
import struct
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from PIL import ExifTags, Image

from runner.base.errors import InvalidDatasetError
from runner.data.source import FolderSource, ImageSource, Subset
from runner.data.sources.index import shown, told

DIGEST_BYTES = 16
_UPRIGHT = 1


class Facts(NamedTuple):
    """What is known of an image once it was looked at."""

    problem: str | None
    """Why it can't be read; the other values mean nothing then."""
    digest: bytes
    """BLAKE2b (RFC 7693) of 128 bits of the file's bytes, or of the pixels where there is no file."""
    width: int
    """In pixels, upright."""
    height: int
    mode: str
    """Pillow's name of the kind of pixels as stored, such as RGB, L or CMYK."""
    is_rotated: bool
    """Whether EXIF has it turned or mirrored on display."""


class Task(NamedTuple):
    """Which image is meant."""

    split: str
    image: int


@dataclass(frozen=True)
class Examiner:
    """Looks at the images of these splits, decoding each as training does."""

    sources: Mapping[str, ImageSource]

    def __call__(self, task: Task) -> Facts:
        """Look at one image; whatever is wrong with it is told, not raised."""
        source = self.sources[task.split]
        try:
            pixels = source.load(task.image)
        except InvalidDatasetError as error:
            reason = str(error).removeprefix(f"{told(source.describe(task.image))}: ")
            return Facts(reason, bytes(DIGEST_BYTES), 0, 0, "", is_rotated=False)
        height, width = pixels.shape[:2]
        path = file_of(source, task.image)
        if path is None:
            header = struct.pack("<II", width, height)
            digest = hashlib.blake2b(header + pixels.tobytes(), digest_size=DIGEST_BYTES).digest()
            return Facts(None, digest, width, height, "RGB", is_rotated=False)
        try:
            mode, is_rotated = _header(path)
            return Facts(None, _digest(path), width, height, mode, is_rotated)
        except OSError as error:
            reason = f"can't be opened: {error.strerror or error}"
            return Facts(reason, bytes(DIGEST_BYTES), 0, 0, "", is_rotated=False)


def file_of(source: ImageSource, image: int) -> str | None:
    """Full path of the file of an image; None where it has none of its own."""
    match source:
        case FolderSource():
            return source.index.path(image)
        case Subset():
            return file_of(source.source, int(source.ids[image]))
        case _:
            return None


def name_of(source: ImageSource, image: int) -> str:
    """The file of an image, else how a person would find it."""
    path = file_of(source, image)
    return source.describe(image) if path is None else shown(path)


def _digest(path: str) -> bytes:
    with Path(path).open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=DIGEST_BYTES)).digest()


def _header(path: str) -> tuple[str, bool]:
    with warnings.catch_warnings():
        # Pillow warns about oddities of files that it can read.
        warnings.simplefilter("ignore")
        with Image.open(path) as image:
            return image.mode, _is_rotated(image)


def _is_rotated(image: Image.Image) -> bool:
    try:
        return bool(image.getexif().get(ExifTags.Base.Orientation, _UPRIGHT) != _UPRIGHT)
    except (SyntaxError, ValueError, TypeError, struct.error, OSError):
        # As in decode.py: damaged EXIF tells nothing, and the pixels are good.
        return False
