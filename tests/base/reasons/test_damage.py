"""Damaged archives and lists as the libraries of Python find them: the reason is in the runner's words."""

from __future__ import annotations

import csv
import io
import tarfile
import zipfile
from pathlib import Path

import pytest

from runner.base.errors import InvalidDatasetError
from runner.base.reasons.damage import archive_mistake, csv_mistake
from runner.tools.dataset.archive import Limits, list_tar, list_zip, read_zip

LIMITS = Limits(max_expansion=1000, max_unpacked_gib=1)


@pytest.fixture
def packed() -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("cat/0.png", b"\x00" * 1000)
    return buffer.getvalue()


def changed(data: bytes, at: int, by: bytes) -> bytes:
    return data[:at] + by + data[at + len(by) :]


def test_zip_archives(tmp_path: Path, packed: bytes) -> None:
    directory = packed.rfind(b"PK\x01\x02")
    damages = {
        packed[:300]: "it is no zip archive, or its end is missing",
        changed(packed, directory, b"XXXX"): "a header in it is damaged",
        changed(packed, directory + 10, b"c\0"): "it is packed in a way that Python can't unpack",
        changed(packed, 200, b"\xff"): "cat/0.png is not what was packed: its checksum differs",
    }
    for data, reason in damages.items():
        (tmp_path / "x.zip").write_bytes(data)
        with pytest.raises(InvalidDatasetError, match=reason):
            list_zip(tmp_path / "x.zip", "utf-8", LIMITS)
            for _, chunks in read_zip(tmp_path / "x.zip", "utf-8", LIMITS, {"cat/0.png"}):
                list(chunks)


@pytest.mark.parametrize("kind", ["", "gz", "bz2", "xz"])
def test_tar_archives_without_their_end(tmp_path: Path, kind: str) -> None:
    (tmp_path / "0.png").write_bytes(bytes(range(256)) * 400)
    with tarfile.open(tmp_path / "x.tar", f"w:{kind}") as archive:  # type: ignore[call-overload]
        archive.add(tmp_path / "0.png", "cat/0.png")
    data = (tmp_path / "x.tar").read_bytes()
    (tmp_path / "x.tar").write_bytes(data[: len(data) // 2])
    with pytest.raises(InvalidDatasetError, match="its end is missing"):
        list_tar(tmp_path / "x.tar", "utf-8", LIMITS)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('"a,b\n', "a quote is opened and not closed"),
        ('"a"b,c\n', "a quote within a value is written twice"),
        ("a" * 200_000, "a value has more than 131072 characters"),
    ],
)
def test_lists(text: str, reason: str) -> None:
    with pytest.raises(csv.Error) as caught:
        list(csv.reader(io.StringIO(text), strict=True))
    assert reason in csv_mistake(caught.value)


def test_an_unknown_reason_is_kept_and_a_silent_one_has_its_kind() -> None:
    assert archive_mistake(RuntimeError("something new")) == "something new"
    assert archive_mistake(EOFError()) == "EOFError"
