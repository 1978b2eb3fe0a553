"""The format of inputs, and how pixels of each format are shown."""

from __future__ import annotations

import numpy as np
import pytest

from runner.data.images.stored import RGB, DecodedImage, InputFormat, for_display


@pytest.mark.parametrize(
    ("form", "decoded", "prepared", "dtype", "meaning"),
    [
        (RGB, 3, 3, np.uint8, "RGB"),
        (InputFormat(channels=1), 1, 1, np.uint8, "grey"),
        (InputFormat(channels=4), 4, 4, np.uint8, "RGBA"),
        (InputFormat(channels=1, bit_depth=16), 2, 4, np.uint16, "grey"),
    ],
)
def test_bytes_and_types_of_a_pixel(form: InputFormat, decoded: int, prepared: int, dtype: type, meaning: str) -> None:
    assert (form.decoded_bytes, form.prepared_bytes, form.dtype, form.meaning) == (decoded, prepared, dtype, meaning)


def test_a_format_is_read_from_what_describes_it() -> None:
    section = InputFormat(channels=4, resize="letterbox", fill=7)
    assert InputFormat.of(section) == section != RGB


def test_a_decoded_image_knows_its_size() -> None:
    image = DecodedImage(np.zeros((3, 5, 1), np.uint8))
    assert (image.height, image.width) == (3, 5)
    assert image.pixels(8) is image.decoded


@pytest.mark.parametrize(
    ("pixels", "shown"),
    [
        (np.array([[[1, 2, 3]]], np.uint8), [1, 2, 3]),
        (np.array([[[9]]], np.uint8), [9, 9, 9]),
        (np.array([[[1, 2, 3, 200]]], np.uint8), [1, 2, 3]),
        (np.array([[[65535]]], np.uint16), [255, 255, 255]),
        (np.array([[[257 * 9]]], np.uint16), [9, 9, 9]),
        (np.array([[[9 / 255]]], np.float32), [9, 9, 9]),
        (np.array([[[1.2]]], np.float32), [255, 255, 255]),
    ],
)
def test_each_format_is_shown_as_rgb(pixels: np.ndarray, shown: list[int]) -> None:
    found = for_display(pixels)
    assert found.dtype == np.uint8
    assert found.tolist() == [[shown]]
