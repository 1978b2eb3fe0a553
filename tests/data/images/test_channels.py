"""Files of each kind as grey, RGB and RGBA, of 8 and of 16 bits; what is refused, and that a model sees the same."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from runner.base.errors import InvalidDatasetError
from runner.config.schema.transforms import Normalize
from runner.data.images.decode import bytes_once_decoded, decode_image, open_image
from runner.data.images.stored import RGB, InputFormat
from runner.data.images.transforms import Normalizer, PackagedTransform, as_tensor

GREY, DEEP, RGBA = InputFormat(channels=1), InputFormat(channels=1, bit_depth=16), InputFormat(channels=4)
FORMATS = {"grey": GREY, "deep": DEEP, "RGB": RGB, "RGBA": RGBA}
NOISE = np.random.default_rng(0).integers(0, 256, (6, 9, 4), dtype=np.uint8)
SCAN = np.random.default_rng(1).integers(0, 65536, (6, 9), dtype=np.uint16)


def save(folder: Path, name: str, pixels: np.ndarray, mode: str | None = None, **options: object) -> str:
    image = Image.fromarray(pixels)
    if mode is not None:
        image = image.convert(mode)
    image.save(folder / name, **options)
    return str(folder / name)


@pytest.mark.parametrize("name", ["x.png", "x.tif"])
def test_a_grey_file_of_8_bits(tmp_path: Path, name: str) -> None:
    grey = NOISE[:, :, 0]
    path = save(tmp_path, name, grey)
    assert np.array_equal(decode_image(path, form=GREY), grey[:, :, None])
    assert np.array_equal(decode_image(path), np.repeat(grey[:, :, None], 3, axis=2))
    of_four = decode_image(path, form=RGBA)
    assert np.array_equal(of_four[:, :, :3], decode_image(path))
    assert (of_four[:, :, 3] == 255).all()
    deep = decode_image(path, form=DEEP)
    assert deep.dtype == np.uint16
    assert np.array_equal(deep[:, :, 0], grey.astype(np.uint16) * 257)


@pytest.mark.parametrize("name", ["x.png", "x.tif", "x.pgm"])
def test_a_scan_of_16_bits_keeps_its_depth(tmp_path: Path, name: str) -> None:
    path = save(tmp_path, name, SCAN)
    assert np.array_equal(decode_image(path, form=DEEP), SCAN[:, :, None])
    # Without it, 0 … 65535 become 0 … 255, whatever the number of channels.
    scaled = np.rint(SCAN / 257).astype(np.uint8)
    assert np.array_equal(decode_image(path, form=GREY), scaled[:, :, None])
    assert np.array_equal(decode_image(path)[:, :, 1], scaled)
    assert np.array_equal(decode_image(path, form=RGBA), np.dstack([scaled, scaled, scaled, np.full_like(scaled, 255)]))


def test_floats_keep_16_of_their_bits(tmp_path: Path) -> None:
    path = save(tmp_path, "x.tif", (SCAN / 65535).astype(np.float32))
    assert np.array_equal(decode_image(path, form=DEEP)[:, :, 0], SCAN)


def test_colours_become_grey_as_pillow_does_it(tmp_path: Path) -> None:
    path = save(tmp_path, "x.png", NOISE[:, :, :3])
    luma = np.asarray(Image.fromarray(NOISE[:, :, :3]).convert("L"))
    assert np.array_equal(decode_image(path, form=GREY)[:, :, 0], luma)
    assert np.array_equal(decode_image(path, form=DEEP)[:, :, 0], luma.astype(np.uint16) * 257)


@pytest.mark.parametrize("name", ["x.png", "x.tif", "x.webp"])
def test_four_channels_are_kept(tmp_path: Path, name: str) -> None:
    path = save(tmp_path, name, NOISE, **({"lossless": True, "exact": True} if name == "x.webp" else {}))
    assert np.array_equal(decode_image(path, form=RGBA), NOISE)
    # Of fewer, transparency is composited over white.
    over_white = Image.new("RGBA", (9, 6), "white")
    over_white.alpha_composite(Image.fromarray(NOISE))
    assert np.array_equal(decode_image(path), np.asarray(over_white.convert("RGB")))
    assert np.array_equal(decode_image(path, form=GREY)[:, :, 0], np.asarray(over_white.convert("RGB").convert("L")))


def test_a_palette_with_transparency_has_four_channels(tmp_path: Path) -> None:
    palette = Image.fromarray(NOISE[:, :, :3]).quantize(4)
    palette.save(tmp_path / "x.png", transparency=0)
    with Image.open(tmp_path / "x.png") as image:
        expected = np.asarray(image.convert("RGBA"))
    assert {0, 255} == set(expected[:, :, 3].flat)
    assert np.array_equal(decode_image(str(tmp_path / "x.png"), form=RGBA), expected)


@pytest.mark.parametrize("name", ["x.jpg", "x.tif"])
def test_ink_is_no_fourth_channel(tmp_path: Path, name: str) -> None:
    path = save(tmp_path, name, NOISE[:, :, :3], "CMYK")
    assert decode_image(path).shape == (6, 9, 3)
    assert decode_image(path, form=GREY).shape == (6, 9, 1)
    with pytest.raises(
        InvalidDatasetError, match=rf"{name}: .*black ink of CMYK; convert it to RGBA, or use data.chan"
    ):
        decode_image(path, form=RGBA)


def test_a_fourth_channel_that_pillow_leaves_out_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "tile.tif"
    Image.fromarray(NOISE).save(path)
    content = path.read_bytes()
    # Tag 338, ExtraSamples, of type SHORT, one value: 2 (alpha) becomes 0 (unspecified), as for near infrared.
    entry = (338).to_bytes(2, "little") + (3).to_bytes(2, "little") + (1).to_bytes(4, "little")
    assert content.count(entry + b"\x02\x00") == 1
    path.write_bytes(content.replace(entry + b"\x02\x00", entry + b"\x00\x00"))
    assert np.array_equal(decode_image(str(path)), NOISE[:, :, :3])
    with pytest.raises(InvalidDatasetError, match=r"tile.tif: .*leaves out its fourth channel.*ExtraSamples = 2"):
        decode_image(str(path), form=RGBA)


@pytest.mark.parametrize("form", FORMATS.values(), ids=FORMATS)
@pytest.mark.parametrize("mode", ["L", "RGB", "CMYK"])
@pytest.mark.parametrize("orientation", [1, 6])
def test_jpegs_are_decoded_as_pillow_does_it(tmp_path: Path, form: InputFormat, mode: str, orientation: int) -> None:
    """The fast decoder and what Pillow opens give the same bits, so that `load_model(run).transform` does."""
    exif = Image.Exif()
    exif[0x0112] = orientation
    path = save(tmp_path, "x.jpg", NOISE.repeat(8, axis=0).repeat(8, axis=1)[:, :, :3], mode, exif=exif)
    if mode == "CMYK" and form is RGBA:
        return  # refused, see above
    pixels = decode_image(path, form=form)
    assert pixels.dtype == form.dtype
    assert pixels.shape == ((48, 72) if orientation == 1 else (72, 48)) + (form.channels,)
    assert bytes_once_decoded(path, form) == pixels.nbytes
    of_model = PackagedTransform((), Normalize(mean=(0.0,) * form.channels, std=(1.0,) * form.channels), form)
    with Image.open(path) as image:
        seen = of_model(image)
    assert torch.equal(
        seen, Normalizer(Normalize(mean=(0.0,) * form.channels, std=(1.0,) * form.channels))(as_tensor(pixels))
    )
    assert seen.max() <= 1


def test_grey_jpegs_are_reduced_too(tmp_path: Path) -> None:
    path = save(tmp_path, "x.jpg", NOISE.repeat(8, axis=0).repeat(8, axis=1)[:, :, 0])
    assert open_image(path, form=GREY).pixels(2).shape == (24, 36, 1)
    assert open_image(path, form=DEEP).pixels(2).dtype == np.uint16


def test_damage_is_named_whatever_the_format(tmp_path: Path) -> None:
    buffer = io.BytesIO()
    Image.fromarray(SCAN).save(buffer, "PNG")
    (tmp_path / "x.png").write_bytes(buffer.getvalue()[:60])
    for form in FORMATS.values():
        with pytest.raises(InvalidDatasetError, match=r"x\.png: the image is damaged"):
            decode_image(str(tmp_path / "x.png"), form=form)
    save(tmp_path, "y.tif", np.full((2, 2), -5, np.int32))
    with pytest.raises(InvalidDatasetError, match="must be within 0 … 65535"):
        decode_image(str(tmp_path / "y.tif"), form=DEEP)


def test_values_of_16_bits_are_scaled_by_65535_before_they_are_normalised() -> None:
    image = np.array([[0, 1, 32768, 65535]], np.uint16)
    normalize = Normalize(mean=(0.25,), std=(0.5,))
    transform = PackagedTransform((), normalize, DEEP)
    seen = transform(image)
    expected = (image.astype(np.float64) / 65535 - 0.25) / 0.5
    np.testing.assert_allclose(seen.numpy()[0], expected, atol=1e-6)
    # As an array, as Pillow's image, as a tensor.
    assert torch.equal(seen, transform(Image.fromarray(image)))
    assert torch.equal(seen, transform(image[:, :, None]))
    assert torch.equal(seen, transform(torch.from_numpy(image)[None]))


def test_a_batch_that_is_normalised_is_not_changed() -> None:
    kept = torch.rand(2, 1, 3, 3)
    before = kept.clone()
    Normalizer(Normalize(mean=(0.5,), std=(0.5,)))(kept)
    assert torch.equal(kept, before)


@pytest.mark.parametrize(
    ("form", "wrong"),
    [
        (GREY, torch.zeros(3, 4, 4, dtype=torch.uint8)),
        (RGBA, torch.zeros(3, 4, 4, dtype=torch.uint8)),
        (DEEP, torch.zeros(1, 4, 4, dtype=torch.uint8)),
    ],
)
def test_a_tensor_of_another_format_is_refused(form: InputFormat, wrong: torch.Tensor) -> None:
    normalize = Normalize(mean=(0.5,) * form.channels, std=(0.5,) * form.channels)
    with pytest.raises(TypeError, match=f"of shape \\({form.channels}, height, width\\)"):
        PackagedTransform((), normalize, form)(wrong)
