"""Inspects each image of a data set and finds problems of the whole: duplicates, leaks, odd sizes."""

from __future__ import annotations

import hashlib
import struct
import warnings
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt
from PIL import ExifTags, Image

from runner.base.errors import InvalidDatasetError
from runner.base.reasons import reason_of
from runner.config.schema.data import DataConfig
from runner.data.images.statistics import PixelSums, pixel_sums
from runner.data.images.stored import InputFormat, Pixels
from runner.data.source import FolderSource, ImageSource, Subset
from runner.data.sources.index import path_text, printable_path

if TYPE_CHECKING:
    from runner.data.images.transforms import Pipeline

# A shorter side of fewer pixels, or of less than this share of the median, is reported as tiny.
MIN_SIDE = 8
MIN_SHARE_OF_MEDIAN = 1 / 8
# Longer side to shorter side.
MAX_ASPECT_RATIO = 5.0
# Of duplicates in several splits those in the last one stay, so that the training split loses its leaks.
_SPLIT_ORDER = ("train", "val", "test")

Ids = npt.NDArray[np.int64]
DIGEST_BYTES = 16
_UPRIGHT = 1


@dataclass(frozen=True)
class Table:
    """The facts of all images in columns: about 40 bytes per image, so that millions fit into memory.

    Images are numbered consecutively over all splits, in the order of `splits`.
    """

    splits: tuple[str, ...]
    starts: Ids
    """Number of the first image of each split, and of all images; shape (number of splits + 1,)."""
    labels: Ids
    digests: npt.NDArray[np.uint64]
    """Shape (N, 2)."""
    widths: Ids
    heights: Ids
    is_read: npt.NDArray[np.bool_]
    problems: Mapping[int, str]
    """Why an image can't be read, by its number."""
    modes: Counter[str]
    num_rotated: int

    def split_of(self, image: int) -> ImageRef:
        """The split of an image, and its number in it."""
        position = int(np.searchsorted(self.starts, image, side="right")) - 1
        return ImageRef(self.splits[position], image - int(self.starts[position]))


@dataclass(frozen=True)
class SameContent:
    """Images of the same content."""

    images: tuple[int, ...]
    splits: tuple[str, ...]
    """The splits that have such an image."""
    labels: tuple[int, ...]
    """Class indices of these images; more than one is a contradiction."""


@dataclass(frozen=True, kw_only=True)
class DatasetProblems:
    """Problems of a data set; image numbers as in :class:`Table`."""

    leaks: tuple[SameContent, ...]
    """The same content in several splits: evaluation would use images of the training."""
    contradictions: tuple[SameContent, ...]
    """The same content with different labels; such a group may be among the leaks too."""
    repeats: tuple[SameContent, ...]
    """The same content with the same label, several times in one split."""
    tiny: Ids
    elongated: Ids


def build_table(sources: Mapping[str, ImageSource], results: Iterable[tuple[ImageRef, ImageFacts]]) -> Table:
    """Put the facts of each image into columns.

    Args:
        sources: by split.
        results: of all images of all splits, in any order.
    """
    splits = tuple(name for name in _SPLIT_ORDER if name in sources)
    starts = np.cumsum([0, *(len(sources[name]) for name in splits)], dtype=np.int64)
    first = dict(zip(splits, starts.tolist(), strict=False))
    total = int(starts[-1])
    digests = np.zeros((total, DIGEST_BYTES // 8), np.uint64)
    widths, heights = np.zeros(total, np.int64), np.zeros(total, np.int64)
    problems: dict[int, str] = {}
    modes: Counter[str] = Counter()
    num_rotated = 0
    for task, facts in results:
        number = first[task.split] + task.image
        if facts.problem is not None:
            problems[number] = facts.problem
            continue
        digests[number] = np.frombuffer(facts.digest, np.uint64)
        widths[number], heights[number] = facts.width, facts.height
        modes[facts.mode] += 1
        num_rotated += facts.is_rotated
    return Table(
        splits=splits,
        starts=starts,
        labels=np.concatenate([sources[name].labels for name in splits]),
        digests=digests,
        widths=widths,
        heights=heights,
        is_read=widths > 0,
        problems=dict(sorted(problems.items())),
        modes=modes,
        num_rotated=num_rotated,
    )


def find_problems(table: Table) -> DatasetProblems:
    """Find duplicates and images of odd sizes."""
    groups = [_described(table, images) for images in _same_content(table)]
    shorter, longer = np.minimum(table.widths, table.heights), np.maximum(table.widths, table.heights)
    return DatasetProblems(
        leaks=tuple(group for group in groups if len(group.splits) > 1),
        contradictions=tuple(group for group in groups if len(group.labels) > 1),
        repeats=tuple(group for group in groups if len(group.splits) == 1 and len(group.labels) == 1),
        tiny=_tiny(table),
        elongated=np.flatnonzero(table.is_read & (longer > MAX_ASPECT_RATIO * shorter)),
    )


def _same_content(table: Table) -> list[Ids]:
    """Groups of images of the same content, ordered by their first image."""
    read = np.flatnonzero(table.is_read)
    digests = table.digests[read]
    order = np.lexsort((read, digests[:, 1], digests[:, 0]))
    in_order = digests[order]
    begins = np.flatnonzero(np.append(True, (in_order[1:] != in_order[:-1]).any(axis=1))) if len(read) else read
    lengths = np.diff(np.append(begins, len(read)))
    groups = [
        read[order[begin : begin + length]]
        for begin, length in zip(begins[lengths > 1], lengths[lengths > 1], strict=True)
    ]
    return sorted(groups, key=lambda images: int(images[0]))


def _described(table: Table, images: Ids) -> SameContent:
    numbers = tuple(images.tolist())
    splits = {table.split_of(image).split for image in numbers}
    labels = tuple(np.unique(table.labels[images]).tolist())
    return SameContent(numbers, tuple(name for name in table.splits if name in splits), labels)


def _tiny(table: Table) -> Ids:
    shorter = np.minimum(table.widths, table.heights)
    if not table.is_read.any():
        return np.empty(0, np.int64)
    limit = max(MIN_SIDE, float(np.median(shorter[table.is_read])) * MIN_SHARE_OF_MEDIAN)
    return np.flatnonzero(table.is_read & (shorter < limit))


def reasons_to_quarantine(table: Table, findings: DatasetProblems) -> dict[int, str]:
    """The images that should be excluded, by number, each with its reason.

    These are images that can't be read, all images of contradicting labels, and of images in several splits those
    outside the last of these splits: the training split loses them, the evaluation stays comparable. Repeats within a
    split and odd sizes are only reported.
    """
    reasons = {image: f"unreadable: {problem}" for image, problem in table.problems.items()}
    for group in findings.contradictions:
        reasons |= dict.fromkeys(group.images, "the same content has different labels")
    for group in findings.leaks:
        last = group.splits[-1]
        for image in group.images:
            if table.split_of(image).split != last:
                reasons.setdefault(image, f"the same content is in {last}")
    return dict(sorted(reasons.items()))


def counts_per_class(table: Table, num_classes: int) -> dict[str, list[int]]:
    """Number of images per class, by split, with unreadable ones, which are in the training set too."""
    pieces: Sequence[Ids] = np.split(table.labels, table.starts[1:-1])
    return {
        name: np.bincount(piece, minlength=num_classes).tolist()
        for name, piece in zip(table.splits, pieces, strict=True)
    }


class ImageFacts(NamedTuple):
    """What was read from an image."""

    problem: str | None
    """Why it can't be read; the other fields are meaningless then."""
    digest: bytes
    """128-bit BLAKE2b (RFC 7693) of the bytes of the file, or of the pixels where there is no file."""
    width: int
    """In pixels, after EXIF rotation; so is the height."""
    height: int
    mode: str
    """Pillow's mode of the stored image, such as RGB, L or CMYK."""
    is_rotated: bool
    """Whether its EXIF orientation rotates or mirrors it."""
    sums: PixelSums | None = None
    """Those of a training image after the transforms, where statistics are asked for."""


class ImageRef(NamedTuple):
    """An image by its split and its number in the split."""

    split: str
    image: int


@dataclass(frozen=True)
class ImageInspector:
    """Inspects images, decoding each as training does."""

    sources: Mapping[str, ImageSource]
    measured: DataConfig | None = None
    """The effective data config where statistics of the training images are asked for."""

    def __call__(self, task: ImageRef) -> ImageFacts:
        """The facts of one image; a failure is returned in `problem`, not raised."""
        source = self.sources[task.split]
        try:
            pixels = source.open(task.image).pixels()
        except InvalidDatasetError as error:
            reason = str(error).removeprefix(f"{printable_path(source.describe(task.image))}: ")
            return ImageFacts(reason, bytes(DIGEST_BYTES), 0, 0, "", is_rotated=False)
        facts = self._described(source, task, pixels)
        if self.measured is None or task.split != "train" or facts.problem is not None:
            return facts
        return facts._replace(sums=self._sums(pixels))

    def _sums(self, pixels: Pixels) -> PixelSums:
        from runner.data.images.transforms import as_tensor  # noqa: PLC0415 - torch only where it is needed

        return pixel_sums(self._transforms(as_tensor(pixels)).numpy())

    @cached_property
    def _transforms(self) -> Pipeline:
        """Made in each process when it is first used."""
        from runner.data.images.transforms import pipeline_of  # noqa: PLC0415 - torch, see above

        assert self.measured is not None
        return pipeline_of(self.measured.eval_transforms, InputFormat.of(self.measured))

    def _described(self, source: ImageSource, task: ImageRef, pixels: Pixels) -> ImageFacts:
        height, width = pixels.shape[:2]
        path = file_of(source, task.image)
        if path is None:
            header = struct.pack("<II", width, height)
            digest = hashlib.blake2b(header + pixels.tobytes(), digest_size=DIGEST_BYTES).digest()
            return ImageFacts(None, digest, width, height, _mode_of(pixels), is_rotated=False)
        try:
            mode, is_rotated = _header(path)
            return ImageFacts(None, _digest(path), width, height, mode, is_rotated)
        except OSError as error:
            reason = f"can't be opened: {reason_of(error)}"
            return ImageFacts(reason, bytes(DIGEST_BYTES), 0, 0, "", is_rotated=False)


def _mode_of(pixels: Pixels) -> str:
    """Pillow's mode of decoded pixels."""
    return "I;16" if pixels.dtype == np.uint16 else {1: "L", 3: "RGB", 4: "RGBA"}[pixels.shape[2]]


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
    """The path of an image for messages, or its description where it has no file."""
    path = file_of(source, image)
    return source.describe(image) if path is None else path_text(path)


def _digest(path: str) -> bytes:
    with Path(path).open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=DIGEST_BYTES)).digest()


def _header(path: str) -> tuple[str, bool]:
    with warnings.catch_warnings():
        # Pillow warns about oddities of readable files.
        warnings.simplefilter("ignore")
        with Image.open(path) as image:
            return image.mode, _is_rotated(image)


def _is_rotated(image: Image.Image) -> bool:
    try:
        return bool(image.getexif().get(ExifTags.Base.Orientation, _UPRIGHT) != _UPRIGHT)
    except (SyntaxError, ValueError, TypeError, struct.error, OSError):
        # As in decode.py: damaged EXIF is ignored, as the pixels are good.
        return False
