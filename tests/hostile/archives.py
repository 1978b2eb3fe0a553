"""Family of archives that are imported; and the odd names that archives, lists and folders have."""

from __future__ import annotations

import io
import random
import struct
import tarfile
import zipfile
from collections.abc import Callable, Iterator

from tests.hostile import odd
from tests.hostile.place import Input, put, quietly


def png(width: int = 8, height: int = 8) -> bytes:
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
    return [(f"{label}/{number}.png", png()) for label in ("a", "b") for number in range(2)]


def _archives() -> Iterator[tuple[str, str, Callable[[], bytes]]]:
    for name in NAMES:
        yield f"name {name[:40]!r}", "zip", lambda name=name: _zip(*_good(), (f"{name}/x.png", png()))
        yield f"file {name[:40]!r}", "zip", lambda name=name: _zip(*_good(), (f"a/{name}.png", png()))
        yield f"name {name[:40]!r}", "tar", lambda name=name: _tar(*_good(), (f"{name}/x.png", png()))
    for suffix, mode in (("tar.gz", "w:gz"), ("tar.bz2", "w:bz2"), ("tar.xz", "w:xz")):
        yield "a bomb", suffix, lambda mode=mode: _tar(("a/x.png", bytes(30 << 20)), mode=mode)
        yield "fine", suffix, lambda mode=mode: _tar(*_good(), mode=mode)
        yield "cut off", suffix, lambda mode=mode: _tar(*_good(), mode=mode)[:-40]
    yield "a bomb", "zip", lambda: _zip(("a/x.png", bytes(30 << 20)))
    yield "many members", "zip", lambda: _zip(*((f"a/{number}.png", b"") for number in range(20_000)))
    yield "deep names", "zip", lambda: _zip(("a/" * 5_000 + "x.png", png()))
    yield "deep names", "tar", lambda: _tar(("a/" * 5_000 + "x.png", png()))
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
    yield "twice the same", "zip", lambda: _zip(*_good(), ("a/0.png", png(9, 9)))
    yield "an archive in it", "zip", lambda: _zip(*_good(), ("a/x.zip", _zip(*_good())))
    yield "encrypted", "zip", lambda: _flagged(_zip(*_good()))
    yield (
        "a false size",
        "zip",
        lambda: _zip(*_good()).replace(struct.pack("<I", len(png())), struct.pack("<I", 2**31)),
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

    return _tar(("a/x.png", png()), edit=edit)


def table() -> Iterator[Input]:
    """Archives that are imported."""
    for title, suffix, make in _archives():
        argv = ("dataset", "import", f"input=x.{suffix}", "output=out", "workers=1")
        yield Input(
            f"x.{suffix}: {title}", argv, lambda place, s=suffix, m=make: quietly(lambda: place.write(f"x.{s}", m()))
        )


def grown(rng: random.Random) -> Input:
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
    return Input(f"noisy x.{suffix}", argv, put(f"x.{suffix}", lambda _: odd.noisy(make(), random.Random(seed))))
