"""Archives that are damaged or mean harm are refused by name, before anything is unpacked."""

from __future__ import annotations

import errno
import io
import os
import stat
import struct
import tarfile
import tracemalloc
import zipfile
from pathlib import Path

import pytest

from runner.base.errors import InvalidDatasetError
from runner.tools.dataset.archive import Limits, list_tar, list_zip, read_tar, read_zip

LIMITS = Limits(max_expansion=100, max_unpacked_gib=1)
NOISE = bytes(range(256)) * 40


def make_zip(path: Path, members: dict[str, bytes], **options) -> Path:
    with zipfile.ZipFile(path, "w", **options) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return path


def tar_info(name: str, kind: bytes = tarfile.REGTYPE, size: int = 0, link: str = "") -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.size, info.linkname = kind, size, link
    return info


def make_tar(path: Path, members: list[tuple[tarfile.TarInfo, bytes]], mode: str = "w", **options) -> Path:
    with tarfile.open(path, mode, **options) as archive:
        for info, content in members:
            info.size = len(content) if content else info.size
            archive.addfile(info, io.BytesIO(content))
    return path


def refusal_of(call, *args) -> str:
    with pytest.raises(InvalidDatasetError) as caught:
        list(call(*args))
    return str(caught.value)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("../evil.jpg", "leads out of its folder by `..`"),
        ("a/../../evil.jpg", "leads out of its folder by `..`"),
        ("..\\evil.jpg", "leads out of its folder by `..`"),
        ("/etc/evil.jpg", "is an absolute path"),
        ("C:\\evil.jpg", "is an absolute path"),
        ("\\\\server\\evil.jpg", "is an absolute path"),
    ],
)
def test_names_that_lead_elsewhere(tmp_path, name, reason):
    assert reason in refusal_of(list_zip, make_zip(tmp_path / "a.zip", {"a/1.jpg": b"x", name: b"x"}), "utf-8", LIMITS)
    if "\\" not in name:
        archive = make_tar(tmp_path / "a.tar", [(tar_info(name), b"x")])
        assert reason in refusal_of(list_tar, archive, "utf-8", LIMITS)


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        (tarfile.SYMTYPE, "is a link"),
        (tarfile.LNKTYPE, "is a link"),
        (tarfile.FIFOTYPE, "is a device"),
        (tarfile.CHRTYPE, "is a device"),
        (tarfile.BLKTYPE, "is a device"),
    ],
)
def test_members_of_a_tar_that_are_no_files(tmp_path, kind, reason):
    archive = make_tar(tmp_path / "a.tar", [(tar_info("ants/1.jpg", kind, link="/etc/passwd"), b"")])
    assert reason in refusal_of(list_tar, archive, "utf-8", LIMITS)


def test_a_link_in_a_zip(tmp_path):
    info = zipfile.ZipInfo("ants/1.jpg")
    info.external_attr = (stat.S_IFLNK | 0o777) << 16
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.writestr(info, "/etc/passwd")
    assert "is a link" in refusal_of(list_zip, tmp_path / "a.zip", "utf-8", LIMITS)


@pytest.mark.parametrize("suffix", ["zip", "tar.gz", "tar.xz", "tar.bz2"])
def test_a_bomb_is_refused_by_its_claimed_size(tmp_path, suffix):
    zeros = bytes(4 << 20)
    path = tmp_path / f"a.{suffix}"
    if suffix == "zip":
        make_zip(path, {"ants/1.bmp": zeros}, compression=zipfile.ZIP_DEFLATED)
        call = list_zip
    else:
        make_tar(path, [(tar_info("ants/1.bmp"), zeros)], mode=f"w:{suffix[4:]}")
        call = list_tar
    assert "more than 100 times its own" in refusal_of(call, path, "utf-8", LIMITS)
    assert "raise max_expansion" in refusal_of(call, path, "utf-8", LIMITS)
    # Whoever trusts it may have it.
    assert len(call(path, "utf-8", Limits(max_expansion=1e6, max_unpacked_gib=1))) == 1


def test_more_than_the_whole_may_hold(tmp_path):
    archive = make_zip(tmp_path / "a.zip", {"ants/1.jpg": NOISE})
    limits = Limits(max_expansion=100, max_unpacked_gib=1e-6)
    assert "raise max_unpacked_gib" in refusal_of(list_zip, archive, "utf-8", limits)


def test_a_header_that_asks_for_more_memory_than_any_header_needs(tmp_path):
    # A GNU "long name" of 64 MiB of zeros, which tarfile would read in one piece.
    info = tar_info("././@LongLink", tarfile.GNUTYPE_LONGNAME, 64 << 20)
    header = info.tobuf(tarfile.GNU_FORMAT)
    path = tmp_path / "a.tar"
    with path.open("wb") as file:
        file.write(header)
        file.truncate(len(header) + (64 << 20) + 1024)
    tracemalloc.start()
    message = refusal_of(list_tar, path, "utf-8", LIMITS)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert "a header of more than" in message
    assert peak < 8 << 20


def test_a_name_that_is_there_twice(tmp_path):
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.writestr("ants/1.jpg", b"x")
        with pytest.warns(UserWarning, match="Duplicate name"):
            archive.writestr("ants/1.jpg", b"y")
    assert "is there twice" in refusal_of(list_zip, tmp_path / "a.zip", "utf-8", LIMITS)
    archive = make_tar(tmp_path / "a.tar", [(tar_info("ants/1.jpg"), b"x"), (tar_info("./ants//1.jpg"), b"y")])
    assert "is there twice" in refusal_of(list_tar, archive, "utf-8", LIMITS)


def test_an_encrypted_zip(tmp_path):
    path = make_zip(tmp_path / "a.zip", {"ants/1.jpg": NOISE})
    data = bytearray(path.read_bytes())
    # The flag of encryption in the central directory (APPNOTE 4.4.4).
    data[data.rindex(b"PK\x01\x02") + 8] |= 1
    path.write_bytes(data)
    assert "is encrypted" in refusal_of(list_zip, path, "utf-8", LIMITS)


@pytest.mark.parametrize("share", [0.0, 0.01, 0.3, 0.6, 0.9, 0.99])
@pytest.mark.parametrize("suffix", ["zip", "tar", "tar.gz", "tar.bz2", "tar.xz"])
def test_a_truncated_archive(tmp_path, suffix, share):
    path = tmp_path / f"a.{suffix}"
    members = {f"ants/{number}.jpg": NOISE for number in range(4)}
    if suffix == "zip":
        make_zip(path, members)
        call = list_zip
    else:
        mode = "w" if suffix == "tar" else f"w:{suffix[4:]}"
        make_tar(path, [(tar_info(name), content) for name, content in members.items()], mode=mode)
        call = list_tar
        # Plain tar ends in zeros up to a multiple of 10,240 bytes; that much may be missing.
        share *= 0.8
    path.write_bytes(path.read_bytes()[: int(path.stat().st_size * share)])
    assert str(path) in refusal_of(call, path, "utf-8", Limits(max_expansion=1e9, max_unpacked_gib=1))


def test_a_tar_that_is_cut_between_two_members(tmp_path):
    path = make_tar(tmp_path / "a.tar", [(tar_info(f"ants/{number}.jpg"), NOISE) for number in range(3)])
    one = 512 + -(-len(NOISE) // 512) * 512
    path.write_bytes(path.read_bytes()[: 2 * one])
    assert "has no end mark" in refusal_of(list_tar, path, "utf-8", LIMITS)


@pytest.mark.parametrize("position", range(50))
def test_a_flipped_byte_is_reported_or_harmless(tmp_path, position):
    path = make_zip(tmp_path / "a.zip", {"ants/1.jpg": NOISE, "bees/1.jpg": NOISE[::-1]})
    data = bytearray(path.read_bytes())
    data[len(data) * position // 50] ^= 0xFF
    path.write_bytes(data)
    try:
        contents = {}
        for name, chunks in read_zip(path, "utf-8", LIMITS, {"ants/1.jpg", "bees/1.jpg"}):
            contents[name] = b"".join(chunks)
    except InvalidDatasetError as error:
        assert str(path) in str(error)
    else:
        assert set(contents.values()) <= {NOISE, NOISE[::-1]}


def test_unpacked_bytes_are_the_packed_bytes(tmp_path):
    members = {"a/1.jpg": NOISE, "a/2.jpg": b"", "b/ü n\n.jpg": b"x" * 1_500_000}
    limits = Limits(max_expansion=1e6, max_unpacked_gib=1)
    path = make_zip(tmp_path / "a.zip", members, compression=zipfile.ZIP_DEFLATED)
    assert {name: b"".join(chunks) for name, chunks in read_zip(path, "utf-8", limits, members)} == members
    for suffix in ("tar", "tar.gz", "tar.bz2", "tar.xz"):
        mode = "w" if suffix == "tar" else f"w:{suffix[4:]}"
        infos = [(tar_info(name), content) for name, content in members.items()]
        path = make_tar(tmp_path / f"a.{suffix}", infos, mode=mode)
        assert {name: b"".join(chunks) for name, chunks in read_tar(path, "utf-8", limits, members)} == members
        assert [name for name, _ in read_tar(path, "utf-8", limits, {"a/2.jpg"})] == ["a/2.jpg"]


def test_a_zip_in_the_64_bit_format(tmp_path):
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive, archive.open("a/1.jpg", "w", force_zip64=True) as file:
        file.write(NOISE)
    (member,) = list_zip(tmp_path / "a.zip", "utf-8", LIMITS)
    assert (member.name, member.num_bytes) == ("a/1.jpg", len(NOISE))


def zip_with_raw_name(path: Path, name: bytes) -> Path:
    """A zip whose only name is of these bytes, not marked as UTF-8; zipfile would mark it."""
    stand_in = b"n" * len(name)
    make_zip(path, {stand_in.decode(): NOISE})
    path.write_bytes(path.read_bytes().replace(stand_in, name))
    return path


def test_names_of_another_encoding(tmp_path):
    path = zip_with_raw_name(tmp_path / "a.zip", "蚂蚁/1.jpg".encode("gbk"))
    assert "encoding=gbk" in refusal_of(list_zip, path, "utf-8", LIMITS)
    assert [member.name for member in list_zip(path, "gbk", LIMITS)] == ["蚂蚁/1.jpg"]
    # As a Mac writes it: UTF-8, but not marked so.
    path = zip_with_raw_name(tmp_path / "b.zip", "蚂蚁/1.jpg".encode())
    assert [member.name for member in list_zip(path, "utf-8", LIMITS)] == ["蚂蚁/1.jpg"]


def test_a_method_of_compression_that_nobody_knows(tmp_path):
    path = make_zip(tmp_path / "a.zip", {"ants/1.jpg": NOISE})
    data = bytearray(path.read_bytes())
    for signature, offset in ((b"PK\x03\x04", 8), (b"PK\x01\x02", 10)):
        struct.pack_into("<H", data, data.index(signature) + offset, 99)
    path.write_bytes(data)
    assert "of an unknown kind" in refusal_of(read_zip, path, "utf-8", LIMITS, {"ants/1.jpg"})


def test_a_disk_that_fails_is_not_taken_for_a_damaged_archive(tmp_path, monkeypatch):
    def fail(*_, **__):
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    archive = make_zip(tmp_path / "a.zip", {"a/1.jpg": b"x"})
    monkeypatch.setattr(zipfile.ZipFile, "__init__", fail)
    told = refusal_of(list_zip, archive, "utf-8", LIMITS)
    assert "can't be read: the disk or the network drive reports an error" in told
    assert "damaged" not in told
