"""Families of data: weights of other programs, archives, lists, images, names."""

from __future__ import annotations

import io
import json
import random
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from typing import Any

from tests.hostile import odd
from tests.hostile.command_lines import SMALL
from tests.hostile.place import Input, Place, Prepare

_FOLDER = (
    *(item for item in SMALL if not item.startswith("data")),
    *("data=folder", "data.root=photos", "data.image_size=32", "data.workers=0", "data.batch_size=1"),
)


class _Runs:
    """What unpickling would call."""

    def __init__(self, function: Callable[..., Any], *arguments: Any) -> None:
        self.made_of = function, arguments

    def __reduce__(self) -> Any:
        return self.made_of


def _pickled() -> dict[str, Any]:
    import collections
    import os
    import subprocess

    import torch

    ring: dict[str, Any] = {}
    ring["state_dict"] = ring
    deep: Any = {}
    for _ in range(5_000):
        deep = {"state_dict": deep}
    return {
        "os.system": _Runs(os.system, "touch @OUT@/pwned"),
        "in a state dict": {"a": _Runs(os.system, "touch @OUT@/pwned")},
        "subprocess": {"state_dict": _Runs(subprocess.Popen, ["touch", "@OUT@/pwned"])},
        "eval": {"model": _Runs(eval, "1+1")},
        "open": _Runs(open, "@OUT@/made", "w"),
        "torch.load": _Runs(torch.load, "@OUT@/secret.txt"),
        "holds itself": ring,
        "deep": deep,
        "a tensor": torch.zeros(3),
        "a list": [torch.zeros(3)],
        "odd names": {"\x1b[2J": torch.zeros(1), "a\0b": torch.zeros(1), "": torch.zeros(1)},
        "names that are numbers": {1: torch.zeros(1), None: torch.zeros(1)},
        "no tensors": {"state_dict": {"a": 1, "b": "x"}},
        "a module": torch.nn.Linear(1, 1),
        "sparse": {"conv1.0.weight": torch.zeros(2, 2).to_sparse()},
        "complex": {"conv1.0.weight": torch.zeros(24, 3, 3, 3, dtype=torch.complex64)},
        "meta": {"conv1.0.weight": torch.zeros(24, 3, 3, 3, device="meta")},
        "expanded": {"conv1.0.weight": torch.zeros(1).expand(1 << 40)},
        "quantized": {"conv1.0.weight": torch.quantize_per_tensor(torch.zeros(2), 1.0, 0, torch.qint8)},
        "nan": {"conv1.0.weight": torch.full((24, 3, 3, 3), float("nan"))},
        "ordered": collections.OrderedDict(a=torch.zeros(1)),
        "many names": {f"k{number}": 0 for number in range(20_000)},
        "null": None,
    }


_PICKLES = tuple(
    "os.system,in a state dict,subprocess,eval,open,torch.load,holds itself,deep,a tensor,a list,odd names,names that are numbers,no tensors,a module,sparse,complex,meta,expanded,quantized,nan,ordered,many names,null".split(
        ","
    )
)
_LAYOUTS = ("zip", "legacy", "bare")


def _saved(title: str, layout: str) -> Callable[[Place], bytes]:
    def make(place: Place) -> bytes:
        import pickle
        import sys

        import torch

        sys.setrecursionlimit(100_000)
        value = _pickled()[title]
        if isinstance(value, _Runs):
            value.made_of = (
                value.made_of[0],
                tuple(place.filled(item) if isinstance(item, str) else item for item in value.made_of[1]),
            )
        buffer = io.BytesIO()
        try:
            if layout == "bare":
                pickle.dump(value, buffer)
            else:
                torch.save(value, buffer, _use_new_zipfile_serialization=layout == "zip")
        except (RuntimeError, NotImplementedError, RecursionError, TypeError):  # what can't be saved in this way
            buffer = io.BytesIO(b"\x80\x04.")
        sys.setrecursionlimit(1000)
        return buffer.getvalue()

    return make


_WEIGHT_DOORS = ((("validate", *SMALL), ()), (SMALL, ()), (("load_config", *SMALL), ()))


def weights_table() -> Iterator[Input]:
    """Weights that an experiment names."""
    for suffix in ("pt", "pth", "safetensors"):
        for title, content in {**odd.TEXTS, "short zip": b"PK\x03\x04" + bytes(50)}.items():
            yield Input(
                f"w.{suffix}: {title}", ("validate", *SMALL, f"model.weights=w.{suffix}"), _file(f"w.{suffix}", content)
            )
        for title, spoil in odd.spoilt(f"w.{suffix}").items():
            if title.endswith(("FIFO", "zero", "secret", "itself", "folder", "gone")):
                yield Input(title, ("validate", *SMALL, f"model.weights=w.{suffix}"), spoil)
    for title in _PICKLES:
        for layout in _LAYOUTS:
            for suffix in ("pt", "safetensors"):
                make, name = _saved(title, layout), f"w.{suffix}"
                yield Input(
                    f"{name}: {layout}, {title}", ("validate", *SMALL, f"model.weights={name}"), _file(name, make)
                )
    from tests.hostile.run_folders import _SAFETENSORS

    for title, content in _SAFETENSORS.items():
        yield Input(
            f"w.safetensors: {title}",
            ("validate", *SMALL, "model.weights=w.safetensors"),
            _file("w.safetensors", content),
        )


def weights_grown(rng: random.Random) -> Input:
    """Noise in weights that would be fine."""
    title, layout, seed = rng.choice(_PICKLES), rng.choice(_LAYOUTS), rng.random()

    def make(place: Place) -> bytes:
        return odd.noisy(_saved(title, layout)(place), random.Random(seed))

    return Input(f"noisy {layout}, {title}", ("validate", *SMALL, "model.weights=w.pt"), _file("w.pt", make))


def _file(name: str, content: bytes | Callable[[Place], bytes]) -> Prepare:
    return lambda place: place.write(name, content if isinstance(content, bytes) else content(place)) and None


def _png(width: int = 8, height: int = 8) -> bytes:
    from PIL import Image

    buffer = io.BytesIO()
    Image.new("RGB", (width, height), (9, 99, 199)).save(buffer, "PNG")
    return buffer.getvalue()


NAMES = (
    *("../evil", "../../outside/victim/x", "/etc/evil", "a/../../x", "..", ".", "-rf", "~", "$(id)", "a\nb", "a\tb"),
    *(
        "\x1b[2J\x1b]0;x\x07",
        "\u009b2J",
        "\u202egnp",
        "\u200b",
        "CON",
        "nul.png",
        "a:b",
        "a\\b",
        "a;b",
        "%s%n",
        "{}",
        "${oc.env:RUNNER_SECRET}",
    ),
    *(
        "=cmd|' /C calc'!A0",
        "+1",
        "-1",
        "@x",
        "\t=1",
        "<script>alert(1)</script>",
        "nan",
        "null",
        "true",
        "2",
        "2.0",
        "",
        " ",
    ),
    *(
        "a",
        "A",
        "\u00e9",
        "e\u0301",
        "x" * 250,
        "\udcff\udcfe",
        "name.with.dots",
        ".hidden",
        "__pycache__",
        "a" * 120 + "/" + "b" * 120,
    ),
)
"""Names of classes and files, in archives, lists and folders."""


def _zip(*members: tuple[str, bytes], edit: Callable[[zipfile.ZipInfo], None] | None = None) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members:
            info = zipfile.ZipInfo("x")
            info.filename, info.compress_type = name, zipfile.ZIP_DEFLATED
            if edit is not None:
                edit(info)
            archive.writestr(info, content)
    return buffer.getvalue()


def _tar(*members: tuple[str, bytes], edit: Callable[[tarfile.TarInfo], None] | None = None, mode: str = "w") -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode=mode) as archive:  # type: ignore[call-overload]
        for name, content in members:
            info = tarfile.TarInfo(name)
            info.size = len(content)
            if edit is not None:
                edit(info)
            archive.addfile(info, io.BytesIO(content))
    return buffer.getvalue()


def _kind(kind: bytes, target: str = "") -> Callable[[tarfile.TarInfo], None]:
    def edit(info: tarfile.TarInfo) -> None:
        info.type, info.linkname, info.size = kind, target, 0

    return edit


def _is_link(info: zipfile.ZipInfo) -> None:
    info.external_attr = 0o120777 << 16


def _good() -> list[tuple[str, bytes]]:
    return [(f"{label}/{number}.png", _png()) for label in ("a", "b") for number in range(2)]


def _archives() -> Iterator[tuple[str, str, Callable[[], bytes]]]:
    for name in NAMES:
        yield f"name {name[:40]!r}", "zip", lambda name=name: _zip(*_good(), (f"{name}/x.png", _png()))
        yield f"file {name[:40]!r}", "zip", lambda name=name: _zip(*_good(), (f"a/{name}.png", _png()))
        yield f"name {name[:40]!r}", "tar", lambda name=name: _tar(*_good(), (f"{name}/x.png", _png()))
    for suffix, mode in (("tar.gz", "w:gz"), ("tar.bz2", "w:bz2"), ("tar.xz", "w:xz")):
        yield "a bomb", suffix, lambda mode=mode: _tar(("a/x.png", bytes(30 << 20)), mode=mode)
        yield "fine", suffix, lambda mode=mode: _tar(*_good(), mode=mode)
        yield "cut off", suffix, lambda mode=mode: _tar(*_good(), mode=mode)[:-40]
    yield "a bomb", "zip", lambda: _zip(("a/x.png", bytes(30 << 20)))
    yield "many members", "zip", lambda: _zip(*((f"a/{number}.png", b"") for number in range(20_000)))
    yield "deep names", "zip", lambda: _zip(("a/" * 5_000 + "x.png", _png()))
    yield "deep names", "tar", lambda: _tar(("a/" * 5_000 + "x.png", _png()))
    yield "a link", "zip", lambda: _zip(*_good(), ("a/l.png", b"/etc/passwd"), edit=_is_link)
    for title, kind, target in (
        ("a link", tarfile.SYMTYPE, "@OUT@"),
        ("a hard link", tarfile.LNKTYPE, "/etc/passwd"),
        ("a device", tarfile.CHRTYPE, ""),
        ("a FIFO", tarfile.FIFOTYPE, ""),
        ("a sparse file", tarfile.GNUTYPE_SPARSE, ""),
        ("an unknown kind", b"Z", ""),
        ("a long name", tarfile.GNUTYPE_LONGNAME, ""),
        ("a header of all", tarfile.XGLTYPE, ""),
    ):
        yield title, "tar", lambda kind=kind, target=target: _tar(("a/l.png", b"x"), edit=_kind(kind, target))
    yield "twice the same", "zip", lambda: _zip(*_good(), ("a/0.png", _png(9, 9)))
    yield "an archive in it", "zip", lambda: _zip(*_good(), ("a/x.zip", _zip(*_good())))
    yield "encrypted", "zip", lambda: _flagged(_zip(*_good()))
    yield (
        "a false size",
        "zip",
        lambda: _zip(*_good()).replace(struct.pack("<I", len(_png())), struct.pack("<I", 2**31)),
    )
    yield "a comment", "zip", lambda: _zip(*_good())[:-2] + b"\xff\xff" + b"\x1b[2J" * 16_383
    yield "a false count", "zip", lambda: _zip(*_good())[:-12] + b"\xff" * 12
    yield "pax with a huge size", "tar", lambda: _pax({"size": "9" * 30})
    yield "pax with a path out", "tar", lambda: _pax({"path": "../../outside/made"})
    yield "pax with NUL", "tar", lambda: _pax({"path": "a\0b"})
    yield "GNU size", "tar", lambda: _tar(*_good()).replace(b"00000000", b"77777777", 3)
    for title, content in odd.TEXTS.items():
        yield title, "zip", lambda content=content: content
        yield title, "tar.gz", lambda content=content: content


def _flagged(content: bytes) -> bytes:
    return content.replace(b"PK\x01\x02\x14\x03\x14\x00\x00\x00", b"PK\x01\x02\x14\x03\x14\x00\x01\x00")


def _pax(records: dict[str, str]) -> bytes:
    def edit(info: tarfile.TarInfo) -> None:
        info.pax_headers = records

    return _tar(("a/x.png", _png()), edit=edit)


def archives_table() -> Iterator[Input]:
    """Archives that are imported."""
    for title, suffix, make in _archives():
        argv = ("dataset", "import", f"input=x.{suffix}", "output=out", "workers=1")
        yield Input(
            f"x.{suffix}: {title}", argv, lambda place, s=suffix, m=make: _quietly(lambda: place.write(f"x.{s}", m()))
        )


def _quietly(write: Callable[[], object]) -> None:
    """Some names can't be put into some archives."""
    try:
        write()
    except (ValueError, UnicodeError, OSError):
        return


def archives_grown(rng: random.Random) -> Input:
    """Noise in archives that would be fine."""
    suffix, make = rng.choice(
        (
            ("zip", lambda: _zip(*_good())),
            ("tar", lambda: _tar(*_good())),
            ("tar.gz", lambda: _tar(*_good(), mode="w:gz")),
        )
    )
    seed = rng.random()
    argv = ("dataset", "import", f"input=x.{suffix}", "output=out", "workers=1")
    return Input(f"noisy x.{suffix}", argv, _file(f"x.{suffix}", lambda _: odd.noisy(make(), random.Random(seed))))


_CSV_DOORS = (
    ("dataset", "import", "input=x.csv", "output=out", "root=photos/train", "workers=1"),
    ("dataset", "split", "input=x.csv", "output=out", "root=photos/train"),
    (
        *(
            "validate",
            "data=csv",
            "data.root=photos/train",
            "data.train=x.csv",
            "data.val_fraction=0.5",
            "data.batch_size=1",
        ),
        *(item for item in SMALL if not item.startswith("data")),
    ),
    (*("validate", "data.exclude=x.csv"), *_FOLDER),
)


def _lists() -> Iterator[tuple[str, str | bytes]]:
    rows = "ant/0.png,ant\nant/1.png,ant\nbee/0.png,bee\nbee/1.png,bee\n"
    for name in NAMES:
        quoted = '"' + name.replace('"', '""') + '"'
        yield f"class {name[:30]!r}", f"path,label\n{rows}cat/0.png,{quoted}\ncat/1.png,{quoted}\n"
        yield f"path {name[:30]!r}", f"path,label\n{rows}{quoted},ant\n"
    for path in odd.PATHS:
        yield f"path {path[:30]!r}", f"path,label\n{rows}{path},ant\n"
    yield "nan and null", f"path,label\n{rows}cat/0.png,nan\ncat/1.png,NaN\n"
    yield "a long field", f"path,label\n{'x' * 200_000},a\n"
    yield "an open quote", f'path,label\n{rows}"ant/2.png,ant\n' + rows * 1000
    yield "NUL", f"path,label\n{rows}ant\0/2.png,ant\n"
    yield "many columns", "path,label" + ",x" * 20_000 + "\n" + rows
    yield "columns twice", "path,label,label\n" + "ant/0.png,a,b\n"
    yield "no header", rows
    yield "only a header", "path,label\n"
    yield "no columns", "a,b\n1,2\n"
    yield "CR", rows.replace("\n", "\r")
    yield "an escape in the header", "path,label,\x1b[2J\n" + rows
    yield "a formula", f"path,label\n{rows}cat/0.png,=HYPERLINK(1)\ncat/1.png,=HYPERLINK(1)\n"
    yield "many rows", "path,label\n" + "ant/0.png,ant\n" * 50_000
    yield "contradictions", "path,label\nant/0.png,ant\nant/0.png,bee\n"
    for title, content in odd.TEXTS.items():
        yield title, content


def _coco() -> Iterator[tuple[str, Any]]:
    def made(**more: Any) -> dict[str, Any]:
        images = [
            {"id": n, "file_name": f"{label}/{n % 2}.png"} for n, label in enumerate(("ant", "ant", "bee", "bee"))
        ]
        return {
            "images": images,
            "annotations": [
                {"id": n, "image_id": n, "category_id": n // 2, "bbox": [0, 0, 1, 1], "area": 1} for n in range(4)
            ],
            "categories": [{"id": 0, "name": "ant"}, {"id": 1, "name": "bee"}],
            **more,
        }

    for name in NAMES:
        yield f"category {name[:30]!r}", made(categories=[{"id": 0, "name": name}, {"id": 1, "name": "bee"}])
        yield f"file {name[:30]!r}", made(images=[{"id": 0, "file_name": name}])
    for value in odd.VALUES:
        for key in ("images", "annotations", "categories"):
            yield f"{key} = {str(value)[:30]!r}", made(**{key: value})
        yield f"id {str(value)[:30]!r}", made(images=[{"id": value, "file_name": "ant/0.png"}])
        yield f"file_name {str(value)[:30]!r}", made(images=[{"id": 0, "file_name": value}])
        yield f"category id {str(value)[:30]!r}", made(categories=[{"id": value, "name": "a"}])
        yield f"area {str(value)[:30]!r}", made(annotations=[{"id": 0, "image_id": 0, "category_id": 0, "area": value}])


_COCO_DOOR = (
    "dataset",
    "import",
    "input=x.json",
    "output=out",
    "root=photos/train",
    "workers=1",
    "multiple_labels=largest",
)


def _photos_and(name: str, content: str | bytes) -> Prepare:
    def prepare(place: Place) -> None:
        place.copy("photos")
        if isinstance(content, str):
            (place.inside / name).write_bytes(place.filled(content).encode("utf-8", "surrogateescape"))
        else:
            place.write(name, content)

    return prepare


def lists_table() -> Iterator[Input]:
    """CSV lists and COCO files."""
    for title, content in _lists():
        for door in _CSV_DOORS:
            yield Input(f"{door[0]} {door[1]}: x.csv: {title}", door, _photos_and("x.csv", content))
    for title, values in _coco():
        yield Input(f"x.json: {title}", _COCO_DOOR, _photos_and("x.json", json.dumps(values)))
    for title, content in odd.TEXTS.items():
        yield Input(f"x.json: {title}", _COCO_DOOR, _photos_and("x.json", content))
    for name, door in (
        ("x.csv", _CSV_DOORS[0]),
        ("x.csv", _CSV_DOORS[1]),
        ("x.csv", _CSV_DOORS[2]),
        ("x.csv", _CSV_DOORS[3]),
        ("x.json", _COCO_DOOR),
    ):
        for title, spoil in odd.spoilt(name).items():
            if "cut off" not in title:
                yield Input(f"{door[0]} {door[1]}: {title}", door, spoil)


def lists_grown(rng: random.Random) -> Input:
    """Noise in lists, odd values in COCO files."""
    seed = rng.random()
    if rng.random() < 0.5:
        _, values = rng.choice(list(_coco())[:10])
        told, changed = odd.mutated(values, random.Random(seed))
        return Input(f"x.json: {told}"[:200], _COCO_DOOR, _photos_and("x.json", json.dumps(changed)))
    title, content = rng.choice([item for item in _lists() if len(item[1]) < 5_000])
    raw = content if isinstance(content, bytes) else content.encode("utf-8", "surrogateescape")
    door = rng.choice(_CSV_DOORS)
    return Input(f"{door[0]} {door[1]}: noisy {title}", door, _photos_and("x.csv", odd.noisy(raw, random.Random(seed))))


_IMAGE_DOORS = (
    ("dataset", "import", "input=photos/train", "output=out", "workers=1"),
    ("dataset", "check", *_FOLDER, "output=out"),
    ("dataset", "show", *_FOLDER, "output=out.png", "num_images=2", "num_samples=1"),
    ("predict", "run=run", "input=photos/train/ant", "output=scores.csv"),
    ("validate", *_FOLDER),
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
    yield "cut off", "png", lambda: _png()[:-30]
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


def images_table() -> Iterator[Input]:
    """Images that are not what they seem."""
    for title, suffix, make in _images():
        for door in _IMAGE_DOORS:
            yield Input(f"{door[0]} {door[1]}: {suffix}: {title}", door, _with_image(f"x.{suffix}", make))
    for door in _IMAGE_DOORS:
        for title, spoil in odd.spoilt("photos/train/ant/0.png").items():
            if title.endswith(("FIFO", "zero", "secret", "itself", "folder", "cut off")):
                yield Input(
                    f"{door[0]} {door[1]}: {title}",
                    door,
                    lambda place, spoil=spoil: (_with_image("y.png", _png)(place), spoil(place)) and None,
                )
        for target in ("@OUT@/victim", "..", "/", "/proc/self"):
            link = lambda place, target=target: (
                (_with_image("y.png", _png)(place), place.link("photos/train/dog", target)) and None
            )  # noqa: E731
            yield Input(f"{door[0]} {door[1]}: a class → {target}", door, link)


def images_grown(rng: random.Random) -> Input:
    """Noise in good images."""
    seed, door, suffix = rng.random(), rng.choice(_IMAGE_DOORS), rng.choice(("png", "jpg"))
    good = _png if suffix == "png" else _jpeg
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
            _quietly(lambda folder=folder, file=file: (folder.mkdir(exist_ok=True), file.write_bytes(_png())))

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
