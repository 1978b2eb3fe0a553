from __future__ import annotations

import errno
import io
import os
import re
import struct
import subprocess
import sys
import warnings
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageOps

from runner.base.errors import DeviceError, InvalidDatasetError
from runner.base.reasons import reason_of
from runner.data.images.decode import bytes_once_decoded, decode_image, to_pixels

RED, GREEN, BLUE, WHITE, BLACK = (255, 0, 0), (0, 255, 0), (0, 0, 255), (255, 255, 255), (0, 0, 0)
QUADRANTS = (RED, GREEN, BLUE, WHITE)


def quadrants(side: int = 8) -> Image.Image:
    """Red and green above blue and white."""
    pixels = np.array(QUADRANTS, dtype=np.uint8).reshape(2, 2, 3)
    return Image.fromarray(pixels.repeat(side, axis=0).repeat(side, axis=1))


def corners(pixels: np.ndarray) -> list[tuple[int, ...]]:
    """The colours in the middle of the four quadrants."""
    height, width = pixels.shape[:2]
    places = [(height // 4, width // 4), (height // 4, -width // 4), (-height // 4, width // 4)]
    return [tuple(pixels[place].tolist()) for place in (*places, (-height // 4, -width // 4))]


def decoded(path: Path) -> np.ndarray:
    pixels = decode_image(str(path))
    assert pixels.dtype == np.uint8
    assert pixels.ndim == 3
    assert pixels.shape[2] == 3
    assert pixels.flags.writeable
    assert pixels.flags.c_contiguous
    return pixels


@pytest.mark.parametrize("name", ["x.png", "x.bmp", "x.ppm", "x.tif", "x.tiff"])
def test_rgb(tmp_path: Path, name: str) -> None:
    quadrants().save(tmp_path / name)
    pixels = decoded(tmp_path / name)
    assert pixels.shape == (16, 16, 3)
    assert corners(pixels) == list(QUADRANTS)


def test_height_and_width(tmp_path: Path) -> None:
    Image.new("RGB", (30, 20)).save(tmp_path / "x.png")
    assert decoded(tmp_path / "x.png").shape == (20, 30, 3)


@pytest.mark.parametrize(("name", "options"), [("x.jpg", {"quality": 95}), ("x.webp", {"quality": 95})])
def test_lossy_formats(tmp_path: Path, name: str, options: dict[str, int]) -> None:
    quadrants(16).save(tmp_path / name, **options)
    difference = np.array(corners(decoded(tmp_path / name))) - np.array(QUADRANTS)
    assert np.abs(difference).max() <= 8


@pytest.mark.parametrize("name", ["x.png", "x.pgm", "x.tif", "x.bmp"])
def test_grey(tmp_path: Path, name: str) -> None:
    Image.fromarray(np.array([[0, 100], [200, 255]], dtype=np.uint8)).save(tmp_path / name)
    assert decoded(tmp_path / name).tolist() == [[[0] * 3, [100] * 3], [[200] * 3, [255] * 3]]


@pytest.mark.parametrize("name", ["x.png", "x.tif", "x.bmp"])
def test_one_bit(tmp_path: Path, name: str) -> None:
    Image.fromarray(np.array([[True, False]])).save(tmp_path / name)
    assert decoded(tmp_path / name).tolist() == [[[255] * 3, [0] * 3]]


def palette_image() -> Image.Image:
    image = Image.new("P", (2, 1))
    image.putpalette([10, 20, 30, 200, 100, 50])
    image.putdata([0, 1])
    return image


@pytest.mark.parametrize("name", ["x.png", "x.tif", "x.bmp", "x.gif"])
def test_palette(tmp_path: Path, name: str) -> None:
    palette_image().save(tmp_path / name)
    assert decoded(tmp_path / name).tolist() == [[[10, 20, 30], [200, 100, 50]]]


def test_palette_with_one_transparent_colour(tmp_path: Path) -> None:
    palette_image().save(tmp_path / "x.png", transparency=0)
    assert decoded(tmp_path / "x.png").tolist() == [[[255, 255, 255], [200, 100, 50]]]


def test_palette_with_alpha_per_colour(tmp_path: Path) -> None:
    palette_image().save(tmp_path / "x.png", transparency=bytes([0, 51]))
    # A fifth of the colour over white: 255 + (200 − 255) / 5, and so on.
    assert decoded(tmp_path / "x.png").tolist() == [[[255, 255, 255], [244, 224, 214]]]


@pytest.mark.parametrize("name", ["x.png", "x.webp", "x.tif"])
def test_alpha_is_laid_over_white(tmp_path: Path, name: str) -> None:
    colours = np.array([[[200, 100, 50, 0], [200, 100, 50, 51], [200, 100, 50, 255]]], dtype=np.uint8)
    Image.fromarray(colours).save(tmp_path / name, lossless=True)
    assert decoded(tmp_path / name).tolist() == [[[255, 255, 255], [244, 224, 214], [200, 100, 50]]]


def test_grey_with_alpha(tmp_path: Path) -> None:
    Image.merge("LA", (Image.new("L", (1, 1), 100), Image.new("L", (1, 1), 51))).save(tmp_path / "x.png")
    assert decoded(tmp_path / "x.png").tolist() == [[[224] * 3]]


def test_a_transparent_colour_of_rgb_and_grey(tmp_path: Path) -> None:
    Image.fromarray(np.array([[[1, 2, 3], [4, 5, 6]]], dtype=np.uint8)).save(tmp_path / "x.png", transparency=(1, 2, 3))
    assert decoded(tmp_path / "x.png").tolist() == [[[255] * 3, [4, 5, 6]]]
    Image.fromarray(np.array([[7, 8]], dtype=np.uint8)).save(tmp_path / "y.png", transparency=7)
    assert decoded(tmp_path / "y.png").tolist() == [[[255] * 3, [8] * 3]]


def test_cmyk_jpeg_as_adobe_writes_it(tmp_path: Path) -> None:
    # Pure inks: cyan is no red, magenta no green, yellow no blue.
    inks = np.array([[255, 0, 0, 0], [0, 255, 0, 0], [0, 0, 255, 0], [0, 0, 0, 255]], dtype=np.uint8).reshape(2, 2, 4)
    image = Image.frombytes("CMYK", (32, 32), inks.repeat(16, axis=0).repeat(16, axis=1).tobytes())
    image.save(tmp_path / "x.jpg", quality=95)
    content = (tmp_path / "x.jpg").read_bytes()
    assert b"Adobe" in content[:100]
    expected = np.array([(0, 255, 255), (255, 0, 255), (255, 255, 0), (0, 0, 0)])
    assert np.abs(np.array(corners(decoded(tmp_path / "x.jpg"))) - expected).max() <= 8
    image.save(tmp_path / "x.tif")
    assert corners(decoded(tmp_path / "x.tif")) == [tuple(colour) for colour in expected.tolist()]


def test_16_bit_grey_is_scaled(tmp_path: Path) -> None:
    values = np.array([[0, 256, 257, 32768, 65407, 65535]], dtype=np.uint16)
    expected = [[0] * 3, [1] * 3, [1] * 3, [128] * 3, [255] * 3, [255] * 3]
    for name in ("x.png", "x.tif", "x.pgm"):
        Image.fromarray(values).save(tmp_path / name)
        assert decoded(tmp_path / name).tolist() == [expected], name
    big_endian = Image.frombytes("I;16B", (6, 1), values.astype(">u2").tobytes())
    assert to_pixels(big_endian).tolist() == [expected]


def png(colour_type: int, depth: int, row: bytes, width: int) -> bytes:
    """A PNG file of one row, for what Pillow can't write."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    header = struct.pack(">IIBBBBB", width, 1, depth, colour_type, 0, 0, 0)
    body = chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"\0" + row)) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + body


def test_16_bit_rgb_and_alpha(tmp_path: Path) -> None:
    (tmp_path / "rgb.png").write_bytes(png(2, 16, struct.pack(">3H", 65535, 32768, 0), 1))
    assert decoded(tmp_path / "rgb.png").tolist() == [[[255, 128, 0]]]
    (tmp_path / "rgba.png").write_bytes(png(6, 16, struct.pack(">8H", 0, 0, 0, 0, 65535, 0, 0, 65535), 2))
    assert decoded(tmp_path / "rgba.png").tolist() == [[[255] * 3, [255, 0, 0]]]
    (tmp_path / "la.png").write_bytes(png(4, 16, struct.pack(">4H", 0, 0, 25700, 65535), 2))
    assert decoded(tmp_path / "la.png").tolist() == [[[255] * 3, [100] * 3]]


def test_few_bits_per_pixel(tmp_path: Path) -> None:
    (tmp_path / "x.png").write_bytes(png(0, 2, bytes([0b00_01_10_11]), 4))
    assert decoded(tmp_path / "x.png").tolist() == [[[0] * 3, [85] * 3, [170] * 3, [255] * 3]]


def test_32_bit_integers_and_floats(tmp_path: Path) -> None:
    Image.fromarray(np.array([[0, 32768, 65535]], dtype=np.int32)).save(tmp_path / "int.tif")
    assert decoded(tmp_path / "int.tif").tolist() == [[[0] * 3, [128] * 3, [255] * 3]]
    Image.fromarray(np.array([[0, 0.5, 1]], dtype=np.float32)).save(tmp_path / "float.tif")
    assert decoded(tmp_path / "float.tif").tolist() == [[[0] * 3, [128] * 3, [255] * 3]]


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        (np.array([[0, 70_000]], dtype=np.int32), "from 0 to 70000, where int32 must be within 0 … 65535"),
        (np.array([[-1, 3]], dtype=np.int32), "from -1 to 3"),
        (np.array([[0, 200]], dtype=np.float32), "from 0 to 200, where float32 must be within 0 … 1"),
        (np.array([[0, np.nan]], dtype=np.float32), "nan"),
    ],
)
def test_values_without_an_agreed_meaning_are_refused(tmp_path: Path, values: np.ndarray, reason: str) -> None:
    Image.fromarray(values).save(tmp_path / "x.tif")
    with pytest.raises(InvalidDatasetError, match=reason):
        decode_image(str(tmp_path / "x.tif"))


@pytest.mark.parametrize("mode", ["YCbCr", "HSV"])
def test_other_colour_spaces(mode: str) -> None:
    difference = np.array(corners(to_pixels(quadrants().convert(mode)))) - np.array(QUADRANTS)
    assert np.abs(difference).max() <= 2


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("name", ["x.jpg", "x.png", "x.webp", "x.tif"])
def test_exif_orientation(tmp_path: Path, orientation: int, name: str) -> None:
    wide = quadrants(16).resize((48, 32), Image.Resampling.NEAREST)
    exif = Image.Exif()
    exif[0x0112] = orientation
    wide.save(tmp_path / name, exif=exif, quality=95)
    with Image.open(tmp_path / name) as image:
        expected = np.array(ImageOps.exif_transpose(image).convert("RGB"))
    assert decoded(tmp_path / name).tolist() == expected.tolist()
    assert expected.shape == ((32, 48, 3) if orientation <= 4 else (48, 32, 3))


def test_a_photograph_taken_upright(tmp_path: Path) -> None:
    # Orientation 6: the camera was turned; what is stored must be turned clockwise to stand upright.
    exif = Image.Exif()
    exif[0x0112] = 6
    quadrants().save(tmp_path / "x.png", exif=exif)
    assert corners(decoded(tmp_path / "x.png")) == [BLUE, RED, WHITE, GREEN]


def test_damaged_exif_does_not_cost_the_image(tmp_path: Path) -> None:
    quadrants(16).save(tmp_path / "x.jpg", exif=b"Exif\0\0" + b"MM\0*\xff\xff\xff\xff garbage", quality=95)
    assert decoded(tmp_path / "x.jpg").shape == (32, 32, 3)
    quadrants(16).save(tmp_path / "y.jpg", exif=b"Exif\0\0 no tiff at all", quality=95)
    assert decoded(tmp_path / "y.jpg").shape == (32, 32, 3)


def test_misnamed_files_are_judged_by_content(tmp_path: Path) -> None:
    content = io.BytesIO()
    quadrants().save(content, "PNG")
    (tmp_path / "x.jpg").write_bytes(content.getvalue())
    assert corners(decoded(tmp_path / "x.jpg")) == list(QUADRANTS)


def test_of_an_animation_the_first_frame(tmp_path: Path) -> None:
    frames = [Image.new("RGB", (4, 4), colour) for colour in (RED, BLUE)]
    frames[0].save(tmp_path / "x.webp", save_all=True, append_images=frames[1:], lossless=True)
    assert corners(decoded(tmp_path / "x.webp"))[0] == RED


def large_png(path: Path, side: int) -> None:
    """A PNG of one colour, one bit per pixel: tiny, and huge once it is decoded."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    packer = zlib.compressobj(1)
    row = b"\0" + b"\xff" * (-(-side // 8))
    body = b"".join(packer.compress(row * 100) for _ in range(side // 100)) + packer.flush()
    header = struct.pack(">IIBBBBB", side, side, 1, 0, 0, 0, 0)
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", body) + chunk(b"IEND", b""))


def test_a_bomb_is_refused_by_its_header_in_little_memory(tmp_path: Path) -> None:
    large_png(tmp_path / "x.png", 30_000)
    assert (tmp_path / "x.png").stat().st_size < 2_000_000
    code = (
        "import resource, sys\nfrom runner.data.images.decode import decode_image\n"
        "from runner.base.errors import InvalidDatasetError\n"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "try:\n    decode_image(sys.argv[1])\nexcept InvalidDatasetError as error:\n    print(error)\n"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "x.png")],
        capture_output=True,
        text=True,
        check=True,
        cwd=Path(__file__).parents[3],
    )
    message, grown_kib = done.stdout.splitlines()
    assert "x.png: too many pixels: " in message
    assert int(grown_kib) < 20_000, "900 million pixels would take 900 MB and more"


def test_max_pixels(tmp_path: Path) -> None:
    quadrants(8).save(tmp_path / "x.png")
    assert decode_image(str(tmp_path / "x.png"), 256).shape == (16, 16, 3)
    with pytest.raises(InvalidDatasetError, match=r"too many pixels: 16 × 16 = 256, more than data.max_pixels = 255"):
        decode_image(str(tmp_path / "x.png"), 255)


def noisy(kind: str, **options: object) -> bytes:
    content = io.BytesIO()
    pixels = np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(content, kind, **options)
    return content.getvalue()


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "TIFF", "BMP", "PPM"])
def test_truncated_anywhere(tmp_path: Path, kind: str) -> None:
    content = noisy(kind)
    # Without the mark of its end alone a PNG still has all of its pixels.
    for size in np.linspace(0, len(content) - (32 if kind == "PNG" else 3), 50, dtype=int).tolist():
        (tmp_path / "x").write_bytes(content[:size])
        with pytest.raises(InvalidDatasetError, match=f"{tmp_path}/x: "):
            decode_image(str(tmp_path / "x"))


def test_other_things_under_the_name_of_an_image(tmp_path: Path) -> None:
    frames = [Image.new("RGB", (4, 4), colour) for colour in (RED, BLUE)]
    content = io.BytesIO()
    frames[0].save(content, "GIF", save_all=True, append_images=frames[1:])
    (tmp_path / "animated.jpg").write_bytes(content.getvalue())
    assert corners(decoded(tmp_path / "animated.jpg"))[0] == RED
    for text in ('<svg xmlns="http://www.w3.org/2000/svg"/>', "<!doctype html>", "%PDF-1.7", "GIF89a"):
        (tmp_path / "x.png").write_text(text)
        with pytest.raises(InvalidDatasetError, match=r"this is no image|damaged or of an unknown kind"):
            decode_image(str(tmp_path / "x.png"))


@pytest.mark.parametrize(
    ("number", "kind"),
    [
        (errno.EACCES, InvalidDatasetError),
        (errno.ENOENT, InvalidDatasetError),
        (errno.ELOOP, InvalidDatasetError),
        (errno.EIO, DeviceError),
        (errno.ESTALE, DeviceError),
        (errno.EMFILE, DeviceError),
    ],
)
def test_faults_of_the_machine_are_no_property_of_the_image(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, kind: type[Exception]
) -> None:
    def fail(*_: object) -> None:
        # Tests may run as root, whom no permission stops.
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr("runner.data.images.decode.open_regular", fail)
    with pytest.raises(
        kind, match=f"{tmp_path}/x.png: can't be .*{re.escape(reason_of(OSError(number, os.strerror(number))))}"
    ):
        decode_image(str(tmp_path / "x.png"))


def test_names_of_255_bytes_and_with_line_breaks(tmp_path: Path) -> None:
    for name in ("é" * 125 + "x.png", "two\nlines.png", " x .png"):
        quadrants().save(tmp_path / name, "PNG")
        assert corners(decoded(tmp_path / name)) == list(QUADRANTS)


def truncated(path: Path) -> None:
    content = io.BytesIO()
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8)).save(content, "JPEG")
    path.write_bytes(content.getvalue()[:1500])


def broken_png(path: Path) -> None:
    content = io.BytesIO()
    quadrants().save(content, "PNG")
    damaged = bytearray(content.getvalue())
    damaged[45] ^= 0xFF
    path.write_bytes(damaged)


@pytest.mark.parametrize(
    ("write", "reason"),
    [
        (lambda path: path.touch(), r"the file is empty \(0 bytes\)"),
        (lambda path: path.write_text("<html>404</html>"), "this is no image: its content is none of JPEG, PNG"),
        (lambda path: path.write_bytes(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n"), "this is no image"),
        (truncated, "damaged or of an unknown kind: image file is truncated"),
        (broken_png, "damaged or of an unknown kind"),
        (lambda path: path.mkdir(), "this is not a regular file"),
        (os.mkfifo, "this is not a regular file"),
        (lambda path: path.symlink_to("/dev/zero"), "this is not a regular file"),
        (lambda path: None, "can't be opened: there is no such file or folder"),
    ],
)
def test_bad_files_are_named(tmp_path: Path, write: Callable[[Path], object], reason: str) -> None:
    write(tmp_path / "x.jpg")
    with pytest.raises(InvalidDatasetError, match=rf"{tmp_path}/x.jpg: .*{reason}"):
        decode_image(str(tmp_path / "x.jpg"))


@pytest.mark.parametrize("head", [b"P6 #", b"P6\n8 8 #", b"P4 8 #", b"P5" + b" \n" * 10])
def test_a_header_without_an_end_is_not_waited_for(tmp_path: Path, head: bytes) -> None:
    filler = b"#" if b"#" in head else b"\n"
    (tmp_path / "x.ppm").write_bytes(head + filler * (1 << 24) + b"\n8 8 255\n" + bytes(192))
    for read in (decode_image, bytes_once_decoded):
        with pytest.raises(InvalidDatasetError, match="its header has more than 65,536 bytes"):
            read(str(tmp_path / "x.ppm"))


@pytest.mark.parametrize(
    ("head", "num_bytes"), [(b"P6 # a comment\n300 300 255\n", 270_000), (b"P4 1000 600\n", 75_000)]
)
def test_pixels_that_look_like_a_header_are_pixels(tmp_path: Path, head: bytes, num_bytes: int) -> None:
    (tmp_path / "x.ppm").write_bytes(head + b" " * num_bytes)
    assert decode_image(str(tmp_path / "x.ppm")).size >= num_bytes


def test_too_many_pixels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    quadrants(8).save(tmp_path / "x.png")
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 127)
    with pytest.raises(InvalidDatasetError, match=r"x.png: too many pixels: .*256 pixels"):
        decode_image(str(tmp_path / "x.png"))


def test_pillow_warnings_stay_inside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    quadrants(8).save(tmp_path / "x.png")
    # 256 pixels: more than the limit, where Pillow warns, but less than twice of it.
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 200)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert corners(decoded(tmp_path / "x.png")) == list(QUADRANTS)
    assert caught == []


def test_a_name_that_is_no_utf8_can_be_printed(tmp_path: Path) -> None:
    with pytest.raises(InvalidDatasetError) as caught:
        decode_image(f"{tmp_path}/\udcff.jpg")
    assert r"\xff.jpg" in str(caught.value)
    str(caught.value).encode("utf-8")
