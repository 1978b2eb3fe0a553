"""A contact sheet: training images beside their augmented versions, epoch by epoch."""

from __future__ import annotations

import functools
import io
import os
from dataclasses import dataclass
from pathlib import Path

import matplotlib as mpl
import numpy as np
import numpy.typing as npt
from matplotlib import font_manager
from matplotlib.ft2font import FT2Font
from PIL import Image, ImageDraw, ImageFont

from runner.base.console import LOGGER
from runner.base.errors import InvalidDatasetError, OutputError
from runner.base.files import write_new
from runner.base.stop import StopRequest
from runner.config.schema import Config
from runner.config.schema.calls.of_datasets import DatasetShowCall
from runner.data.images.stored import for_display
from runner.data.loader.order import epoch_order
from runner.data.source import ImageSource
from runner.data.sources.paths import resolve_paths
from runner.data.splits import Splits, open_splits
from runner.tools.dataset.problems import name_of
from runner.tools.dataset.staging import full_path
from runner.training.assemble import preview_batches

_MIN_SIDE = 128
_MAX_SIDE = 256
_GAP = 8
_NAME_WIDTH = 200
_TEXT_SIZE = 15
_SMALL_TEXT_SIZE = 11
_LINE = 22
_INK = "black"
_PALE_INK = "#666666"


@dataclass(frozen=True)
class _Row:
    label: str
    file: str
    original: npt.NDArray[np.uint8]
    samples: tuple[npt.NDArray[np.uint8], ...]


def show_dataset(config: Config, call: DatasetShowCall, stop: StopRequest) -> list[str]:
    """Write a contact sheet to `call.output`.

    Each sample is exactly the image that training gets in that epoch: same code, same random keys.

    Returns:
        The files of the rows.

    Raises:
        RunnerError: the data set can't be opened, or no image can be read.
        OutputError: the file exists, or can't be written.
        StoppedOnRequest: a signal asked for it.
    """
    output = full_path(call.output)
    if os.path.lexists(output):
        raise OutputError(f"output = {output}: already exists and is never overwritten; choose another")
    config = config.model_copy(update={"data": resolve_paths(config.data)})
    splits = open_splits(config.data, config.seed)
    rows = _rows(config, splits, call, stop)
    picture = io.BytesIO()
    _drawn(rows, call.epoch).save(picture, format="PNG")
    stop.raise_if_received("nothing was written")
    write_new(output, picture.getvalue())
    return [row.file for row in rows]


def each_class_in_turn(labels: npt.NDArray[np.int64], order: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Reorder images round-robin by class: each class has come k times before one comes for the (k + 1)-th time.

    Args:
        labels: class index of each image, shape (N,).
        order: numbers of the images, shape (N,).
    """
    in_order = labels[order]
    by_class = np.argsort(in_order, kind="stable")
    counts = np.bincount(in_order)
    turn = np.empty(len(order), np.int64)
    turn[by_class] = np.arange(len(order)) - np.repeat(np.cumsum(counts) - counts, counts)
    return order[np.argsort(turn, kind="stable")]


def _rows(config: Config, splits: Splits, call: DatasetShowCall, stop: StopRequest) -> list[_Row]:
    source = splits.train
    batches = preview_batches(config, splits)
    first = call.epoch - 1
    rows: list[_Row] = []
    for image in each_class_in_turn(source.labels, epoch_order(len(source), config.seed, first)).tolist():
        stop.raise_if_received("nothing was written")
        original = _loaded(source, image)
        if original is None:
            continue
        epochs = range(first, first + call.num_samples)
        samples = tuple(
            for_display(batches.seen(epoch, np.array([image])).images[0].permute(1, 2, 0).contiguous().numpy())
            for epoch in epochs
        )
        rows.append(_Row(splits.classes[source.labels[image]], name_of(source, image), original, samples))
        if len(rows) == call.num_images:
            break
    if not rows:
        raise InvalidDatasetError("no training image can be read; `dataset check` reports the reasons")
    return rows


def _loaded(source: ImageSource, image: int) -> npt.NDArray[np.uint8] | None:
    try:
        return for_display(source.open(image).pixels())
    except InvalidDatasetError as error:
        LOGGER.warning("not shown: %s", error)
        return None


def _drawn(rows: list[_Row], first_epoch: int) -> Image.Image:
    side = max(_MIN_SIDE, min(_MAX_SIDE, max(max(sample.shape[:2]) for row in rows for sample in row.samples)))
    columns = ["original", *(f"epoch {first_epoch + number}" for number in range(len(rows[0].samples)))]
    step = side + _GAP
    size = (_NAME_WIDTH + _GAP + len(columns) * step, _LINE + len(rows) * step)
    sheet = Image.new("RGB", size, "white")
    draw = ImageDraw.Draw(sheet)
    for number, title in enumerate(columns):
        _write(draw, (_NAME_WIDTH + _GAP + number * step, 3), title, width=side)
    for position, row in enumerate(rows):
        top = _LINE + position * step
        _write(draw, (_GAP, top), row.label, width=_NAME_WIDTH - _GAP)
        _write(draw, (_GAP, top + _LINE), row.file.rpartition("/")[2], width=_NAME_WIDTH - _GAP, is_small=True)
        for number, pixels in enumerate([row.original, *row.samples]):
            sheet.paste(_tile(pixels, side), (_NAME_WIDTH + _GAP + number * step, top))
    return sheet


def _tile(pixels: npt.NDArray[np.uint8], side: int) -> Image.Image:
    """An image scaled to the side of a tile: up by a whole factor, so that its pixels stay visible, or down."""
    image = Image.fromarray(pixels)
    longer = max(image.size)
    if longer > side:
        image.thumbnail((side, side))
        return image
    factor = side // longer
    return image.resize((image.width * factor, image.height * factor), Image.Resampling.NEAREST)


def _write(draw: ImageDraw.ImageDraw, at: tuple[int, int], text: str, *, width: int, is_small: bool = False) -> None:
    """Draw one line of text, shortened with an ellipsis to `width` pixels."""
    shown, font = fitting(text, _SMALL_TEXT_SIZE if is_small else _TEXT_SIZE)
    if font.getlength(shown) > width:
        while shown and font.getlength(f"{shown}…") > width:
            shown = shown[:-1]
        shown += "…"
    draw.text(at, shown, fill=_PALE_INK if is_small else _INK, font=font)


def fitting(text: str, size: int) -> tuple[str, ImageFont.FreeTypeFont]:
    """A text as it can be drawn, and a font that has all its characters.

    DejaVu, which comes with matplotlib, has most alphabets; for others the installed fonts are searched. Characters
    that no font has, and unprintable ones such as line breaks, become escapes like \\u4e2d.

    Args:
        text: one line.
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
    """Font files, sorted so that the same machine draws the same picture."""
    return tuple(sorted(font_manager.findSystemFonts()))


@functools.cache
def _characters(path: str) -> frozenset[int]:
    try:
        font = FT2Font(path)
        # Bitmap fonts, as for emoji, can't be drawn at any size.
        return frozenset(font.get_charmap()) if font.scalable else frozenset()
    except (OSError, RuntimeError):
        return frozenset()
