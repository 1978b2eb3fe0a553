"""Families of images that are not what they seem, and of the names of files and classes."""

from __future__ import annotations

import io
import random
import struct
import zlib
from collections.abc import Callable, Iterator

from tests.hostile import odd
from tests.hostile.archives import NAMES, png
from tests.hostile.command_lines import ON_PHOTOS
from tests.hostile.place import Input, Place, Prepare, both, linked, quietly

_IMAGE_DOORS = (
    ("dataset", "import", "input=photos/train", "output=out", "workers=1"),
    ("dataset", "check", *ON_PHOTOS, "output=out"),
    ("dataset", "show", *ON_PHOTOS, "output=out.png", "num_images=2", "num_samples=1"),
    ("predict", "run=run", "input=photos/train/ant", "output=scores.csv"),
    ("validate", *ON_PHOTOS),
)


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def _png_of(width: int, height: int, *chunks: bytes) -> bytes:
    head = _chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + head + b"".join(chunks) + _chunk(b"IEND", b"")


def _images() -> Iterator[tuple[str, str, Callable[[], bytes]]]:
    yield "a bomb", "png", lambda: _png_of(60_000, 60_000, _chunk(b"IDAT", zlib.compress(bytes(1 << 20))))
    yield "the largest size", "png", lambda: _png_of(2**31 - 1, 2**31 - 1)
    yield "no size", "png", lambda: _png_of(0, 0)
    yield "a text bomb", "png", lambda: _png_of(8, 8, _chunk(b"zTXt", b"a\0\0" + zlib.compress(bytes(100 << 20))))
    yield "a profile bomb", "png", lambda: _png_of(8, 8, _chunk(b"iCCP", b"a\0\0" + zlib.compress(bytes(100 << 20))))
    yield "a chunk of 2 GB", "png", lambda: _png_of(8, 8)[:-12] + struct.pack(">I", 2**31 - 1) + b"IDAT"
    yield "no data", "png", lambda: _png_of(8, 8)
    yield "cut off", "png", lambda: png()[:-30]
    yield "GIF as PNG", "png", lambda: b"GIF89a" + struct.pack("<HH", 65535, 65535) + bytes(50)
    yield (
        "PostScript as PNG",
        "png",
        lambda: b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n(touch /tmp/pwned) system\n%%EOF\n",
    )
    yield (
        "SVG as PNG",
        "png",
        lambda: b"<svg xmlns='http://www.w3.org/2000/svg'><image href='file:///etc/passwd'/></svg>",
    )
    yield "a JPEG's head", "jpg", lambda: b"\xff\xd8\xff\xe0\0\x10JFIF\0\1\1\0\0\1\0\1\0\0" + bytes(20)
    yield (
        "a JPEG of 65500",
        "jpg",
        lambda: _jpeg().replace(b"\xff\xc0\0\x11\x08\0\x08\0\x08", b"\xff\xc0\0\x11\x08\xff\xdc\xff\xdc"),
    )
    yield (
        "EXIF in a ring",
        "jpg",
        lambda: _jpeg()[:2] + _segment(b"Exif\0\0II*\0\x08\0\0\0" + b"\xff\xff" + bytes(100)) + _jpeg()[2:],
    )
    yield (
        "an odd orientation",
        "jpg",
        lambda: (
            _jpeg()[:2] + _segment(b"Exif\0\0II*\0\x08\0\0\0\1\0\x12\1\3\0\1\0\0\0\x63\0\0\0\0\0\0\0") + _jpeg()[2:]
        ),
    )
    yield "a TIFF in a ring", "tif", lambda: b"II*\0\x08\0\0\0\0\0\x08\0\0\0"
    yield (
        "a TIFF of many directories",
        "tif",
        lambda: b"II*\0\x08\0\0\0\xff\xff" + b"\1\1\4\0\xff\xff\xff\xff\0\0\0\0" * 65_535,
    )
    yield (
        "a BMP of the largest size",
        "bmp",
        lambda: (
            b"BM" + struct.pack("<IHHIIiiHHIIiiII", 70, 0, 0, 54, 40, 2**31 - 1, 2**31 - 1, 1, 24, 0, 0, 0, 0, 0, 0)
        ),
    )
    yield "a PPM of the largest size", "ppm", lambda: b"P6 2000000000 2000000000 255\n" + bytes(30)
    yield "a PPM with long numbers", "ppm", lambda: b"P6 " + b"9" * 5_000 + b" 1 255\n"
    yield "a WebP's head", "webp", lambda: b"RIFF\xff\xff\xff\xffWEBPVP8L" + bytes(40)
    for title, content in odd.TEXTS.items():
        yield title, "png", lambda content=content: content
        yield title, "jpg", lambda content=content: content


def _segment(data: bytes) -> bytes:
    return b"\xff\xe1" + struct.pack(">H", len(data) + 2) + data


def _jpeg() -> bytes:
    from PIL import Image

    buffer = io.BytesIO()
    Image.new("RGB", (8, 8), (9, 99, 199)).save(buffer, "JPEG")
    return buffer.getvalue()


def _with_image(name: str, make: Callable[[], bytes]) -> Prepare:
    def prepare(place: Place) -> None:
        place.copy("photos")
        place.copy("run")
        place.write(f"photos/train/ant/{name}", make())

    return prepare


def table() -> Iterator[Input]:
    """Images that are not what they seem."""
    for title, suffix, make in _images():
        for door in _IMAGE_DOORS:
            yield Input(f"{door[0]} {door[1]}: {suffix}: {title}", door, _with_image(f"x.{suffix}", make))
    for door in _IMAGE_DOORS:
        for title, spoil in odd.spoilt("photos/train/ant/0.png").items():
            if title.endswith(("FIFO", "zero", "secret", "itself", "folder", "cut off")):
                yield Input(f"{door[0]} {door[1]}: {title}", door, both(_with_image("y.png", png), spoil))
        for target in ("@OUT@/victim", "..", "/", "/proc/self"):
            prepare = both(_with_image("y.png", png), linked("photos/train/dog", target))
            yield Input(f"{door[0]} {door[1]}: a class → {target}", door, prepare)


def grown(rng: random.Random) -> Input:
    """Noise in good images."""
    seed, door, suffix = rng.random(), rng.choice(_IMAGE_DOORS), rng.choice(("png", "jpg"))
    good = png if suffix == "png" else _jpeg
    return Input(
        f"{door[0]} {door[1]}: a noisy {suffix}",
        door,
        _with_image(f"x.{suffix}", lambda: odd.noisy(good(), random.Random(seed))),
    )


def _with_names(names: tuple[str, ...]) -> Prepare:
    def prepare(place: Place) -> None:
        place.copy("photos")
        place.copy("run")
        for name in names:
            folder = place.inside / "photos/train" / name.replace("/", "_")
            file = folder / f"{name.replace('/', '_')}.png"
            quietly(lambda folder=folder, file=file: (folder.mkdir(exist_ok=True), file.write_bytes(png())))

    return prepare


_NAME_DOORS = (
    *_IMAGE_DOORS,
    ("dataset", "split", "input=photos/train", "output=out"),
    ("dataset", "split", "input=photos/train", "output=out", "mode=copy"),
    ("predict", "run=run", "input=photos", "output=scores.jsonl"),
)


def names_table() -> Iterator[Input]:
    """Class folders and files with odd names."""
    for name in NAMES:
        if name not in ("", ".", ".."):
            for door in _NAME_DOORS:
                yield Input(f"{door[0]} {door[1]}: {name[:40]!r}", door, _with_names((name,)))
    for pair in (("a", "A"), ("\u00e9", "e\u0301"), ("2", "2.0"), ("nan", "NaN"), ("x ", "x")):
        for door in _NAME_DOORS:
            yield Input(f"{door[0]} {door[1]}: {pair}", door, _with_names(pair))


def names_grown(rng: random.Random) -> Input:
    """Several odd names, spliced."""
    made = tuple("".join(rng.sample(NAMES, 2))[:120] for _ in range(rng.randint(1, 4)))
    door = rng.choice(_NAME_DOORS)
    return Input(f"{door[0]} {door[1]}: {[name[:20] for name in made]}", door, _with_names(made))
