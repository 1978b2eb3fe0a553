from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import ExifTags, Image

from runner.base.errors import InvalidDatasetError
from runner.data.images import decode, jpeg
from runner.data.images.decode import decode_image, open_image, to_pixels
from runner.data.images.stored import StoredImage


def scene(width: int, height: int, mode: str = "RGB") -> Image.Image:
    """Colours that change smoothly, with edges."""
    y, x = np.mgrid[:height, :width]
    wave = np.stack([128 + 100 * np.sin(x / 9), 128 + 100 * np.cos(y / 7), 40 + 60 * ((x // 32 + y // 32) % 2)], -1)
    return Image.fromarray(wave.astype(np.uint8)).convert(mode)


def by_pillow(path: Path) -> np.ndarray:
    with Image.open(path) as image:
        return to_pixels(image)


@pytest.fixture
def no_pillow(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("Pillow was asked for pixels")

    monkeypatch.setattr(decode, "_decoded_by_pillow", refuse)


SAVED = {
    "plain": {},
    "full chroma": {"subsampling": 0},
    "half chroma": {"subsampling": 1},
    "progressive": {"progressive": True},
    "bad quality": {"quality": 20},
    "restarts": {"restart_marker_blocks": 4},
    "kept RGB": {"keep_rgb": True},
}


@pytest.mark.usefixtures("no_pillow")
@pytest.mark.parametrize("mode", ["RGB", "L"])
@pytest.mark.parametrize("options", SAVED.values(), ids=SAVED)
@pytest.mark.parametrize("size", [(1, 1), (7, 9), (97, 61), (333, 250)])
def test_pixels_equal_those_of_pillow(tmp_path: Path, size: tuple[int, int], options: dict, mode: str) -> None:
    scene(*size, mode).save(tmp_path / "x.jpg", **options)
    pixels = decode_image(str(tmp_path / "x.jpg"))
    assert np.array_equal(pixels, by_pillow(tmp_path / "x.jpg"))
    assert pixels.flags.writeable
    assert pixels.flags.c_contiguous


@pytest.mark.usefixtures("no_pillow")
@pytest.mark.parametrize("orientation", range(1, 9))
def test_turned_as_pillow_turns(tmp_path: Path, orientation: int) -> None:
    exif = Image.Exif()
    exif[ExifTags.Base.Orientation] = orientation
    scene(60, 41).save(tmp_path / "x.jpg", exif=exif)
    stored = open_image(str(tmp_path / "x.jpg"))
    expected = by_pillow(tmp_path / "x.jpg")
    assert (stored.height, stored.width) == expected.shape[:2]
    assert np.array_equal(stored.pixels(), expected)
    half = stored.pixels(2)
    assert half.shape == (-(-stored.height // 2), -(-stored.width // 2), 3)
    # Turned the same way: it looks like the whole one, seen from afar.
    near = np.asarray(Image.fromarray(expected).resize(half.shape[1::-1], Image.Resampling.BOX), dtype=int)
    assert np.abs(near - half).mean() < 6


def test_orientation_in_xmp(tmp_path: Path) -> None:
    text = (
        b'<x:xmpmeta xmlns:x="adobe:ns:meta/"><rdf:RDF xmlns:rdf="http://www.w3.org/1999/02/22-rdf-syntax-ns#">'
        b'<rdf:Description xmlns:tiff="http://ns.adobe.com/tiff/1.0/" tiff:Orientation="6"/></rdf:RDF></x:xmpmeta>'
    )
    scene(60, 41).save(tmp_path / "x.jpg", xmp=text)
    assert open_image(str(tmp_path / "x.jpg")).height == 60
    assert np.array_equal(decode_image(str(tmp_path / "x.jpg")), by_pillow(tmp_path / "x.jpg"))


@pytest.mark.parametrize("reduction", [2, 4, 8])
@pytest.mark.parametrize("size", [(1, 1), (97, 61), (333, 250)])
def test_reduced_images_have_the_rounded_up_size(tmp_path: Path, size: tuple[int, int], reduction: int) -> None:
    scene(*size).save(tmp_path / "x.jpg", quality=90)
    stored = open_image(str(tmp_path / "x.jpg"))
    width, height = size
    assert (stored.height, stored.width) == (height, width)
    assert stored.pixels(reduction).shape == (-(-height // reduction), -(-width // reduction), 3)


def test_cmyk_is_left_to_pillow(tmp_path: Path) -> None:
    scene(40, 30, "CMYK").save(tmp_path / "x.jpg")
    assert jpeg.read_header((tmp_path / "x.jpg").read_bytes()) is None
    assert np.array_equal(decode_image(str(tmp_path / "x.jpg")), by_pillow(tmp_path / "x.jpg"))


def test_other_formats_are_whole_whatever_the_reduction(tmp_path: Path) -> None:
    scene(40, 30).save(tmp_path / "x.jpg", format="PNG")
    stored = open_image(str(tmp_path / "x.jpg"))
    assert np.array_equal(stored.pixels(4), np.asarray(scene(40, 30)))


def corrupted(change: Callable[[bytes], bytes]) -> Callable[[Path], StoredImage]:
    def write(folder: Path) -> StoredImage:
        buffer = io.BytesIO()
        scene(97, 61).save(buffer, "JPEG")
        (folder / "x.jpg").write_bytes(change(buffer.getvalue()))
        return open_image(str(folder / "x.jpg"))

    return write


@pytest.mark.parametrize("reduction", [1, 2])
def test_truncated(tmp_path: Path, reduction: int) -> None:
    stored = corrupted(lambda content: content[: len(content) // 2])(tmp_path)
    with pytest.raises(InvalidDatasetError, match=r"x\.jpg: the image is damaged.*truncated"):
        stored.pixels(reduction)


def test_a_damaged_jpeg_that_pillow_can_decode_is_left_to_pillow(tmp_path: Path) -> None:
    """Bytes between two markers: libjpeg warns, the pixels are there."""
    stored = corrupted(lambda content: content.replace(b"\xff\xda", b"\x00\x00\x00\xff\xda", 1))(tmp_path)
    assert np.array_equal(stored.pixels(2), by_pillow(tmp_path / "x.jpg"))


def test_a_file_that_only_begins_like_a_jpeg_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidDatasetError, match=r"x\.jpg"):
        corrupted(lambda _: jpeg.START)(tmp_path)


def test_the_header_says_how_large_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scene(97, 61).save(tmp_path / "x.jpg")
    monkeypatch.setattr(jpeg, "decode", None)
    with pytest.raises(InvalidDatasetError, match=r"97 × 61 = 5,917, more than data\.max_pixels = 5,916"):
        open_image(str(tmp_path / "x.jpg"), max_pixels=5_916)


def test_large_files_are_read_piece_by_piece(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scene(97, 61).save(tmp_path / "x.jpg")
    monkeypatch.setattr(decode, "_MOST_JPEG_BYTES", 100)
    monkeypatch.setattr(jpeg, "decode", None)
    assert np.array_equal(decode_image(str(tmp_path / "x.jpg")), by_pillow(tmp_path / "x.jpg"))
