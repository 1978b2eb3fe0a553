"""The snapshot of a run's code: what is in it, and that reading one from others leads nowhere."""

from __future__ import annotations

import gzip
import io
import os
import subprocess
import tarfile

import pytest

from runner.base.errors import CheckpointError, ConfigError
from runner.run import snapshot
from runner.run.snapshot import (
    FILE_NAME,
    SourceFile,
    differing_files,
    pack,
    read_snapshot,
    take_snapshot,
    unpack,
    write_source,
)


@pytest.fixture
def repository(tmp_path):
    folder = tmp_path / "code"
    (folder / "package").mkdir(parents=True)
    (folder / ".gitignore").write_text("ignored*\n")
    for name in ("package/a.py", "removed.py", "ignored.txt"):
        (folder / name).write_text(f"# {name}\n")
    git(folder, "init", "-q")
    git(folder, "add", ".")
    git(folder, "-c", "user.name=a", "-c", "user.email=a@example.org", "commit", "-q", "-m", "first")
    (folder / "removed.py").unlink()
    (folder / "package" / "a.py").write_text("changed = 1\n")
    (folder / "new.sh").write_text("#!/bin/sh\n")
    (folder / "new.sh").chmod(0o755)
    (folder / "id_rsa").write_text("secret")
    (folder / "within").symlink_to("package/a.py")
    (folder / "out").symlink_to(tmp_path)
    return folder


def git(folder, *arguments):
    subprocess.run(["git", "-C", str(folder), *arguments], check=True, capture_output=True)


def test_a_snapshot_has_what_git_would_commit(repository, tmp_path):
    taken = take_snapshot(repository / "package")
    files = unpack(taken.archive, FILE_NAME)
    assert files == {
        ".gitignore": SourceFile(b"ignored*\n"),
        "new.sh": SourceFile(b"#!/bin/sh\n", is_executable=True),
        "package/a.py": SourceFile(b"changed = 1\n"),
        "within": SourceFile(b"package/a.py", is_link=True),
    }
    assert taken.facts["folder"] == "package"
    assert taken.facts["left_out"] == ["id_rsa (may hold credentials)", "out (a link out of the repository)"]
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / FILE_NAME).write_bytes(taken.archive)
    assert read_snapshot(tmp_path / "run", {"snapshot": taken.facts}) == files
    write_source(files, tmp_path / "written")
    assert differing_files(files, tmp_path / "written") == []
    assert differing_files(files, repository) == []
    (tmp_path / "written" / "package" / "a.py").write_text("changed = 2\n")
    assert differing_files(files, tmp_path / "written") == ["package/a.py"]


def test_the_same_files_are_the_same_bytes(repository):
    first = take_snapshot(repository).archive
    for path in repository.glob("*"):
        os.utime(path, (1, 1), follow_symlinks=False)
    (repository / "package" / "a.py").chmod(0o600)
    assert take_snapshot(repository).archive == first


def test_what_can_not_be_taken_is_refused_with_the_largest(repository, tmp_path, monkeypatch):
    (tmp_path / "elsewhere").mkdir()
    with pytest.raises(ConfigError, match="is in no git repository"):
        take_snapshot(tmp_path / "elsewhere")
    (repository / "data.bin").write_bytes(bytes(5000))
    monkeypatch.setattr(snapshot, "MOST_BYTES", 4000)
    with pytest.raises(ConfigError, match=r"run\.snapshot = true: git would commit 5 files.*largest: data\.bin"):
        take_snapshot(repository)
    assert take_snapshot(repository, without=[repository / "data.bin"]).facts["num_files"] == 4


def test_an_archive_that_is_not_the_recorded_one_is_refused(repository, tmp_path):
    taken = take_snapshot(repository)
    with pytest.raises(CheckpointError, match="can't be read"):
        read_snapshot(tmp_path, {"snapshot": taken.facts})
    (tmp_path / FILE_NAME).write_bytes(pack({"a.py": SourceFile(b"evil")}))
    with pytest.raises(CheckpointError, match="SHA-256 is not the one"):
        read_snapshot(tmp_path, {"snapshot": taken.facts})
    assert read_snapshot(tmp_path, {}) is None


def member(name, kind=tarfile.REGTYPE, target=""):
    found = tarfile.TarInfo(name)
    found.type, found.linkname = kind, target
    return found


def archive_of(*members):
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        for item in members:
            archive.addfile(item)
    return gzip.compress(packed.getvalue())


def holes(num_bytes):
    """A file of a few bytes that says it has so many."""
    found = member("source/a")
    found.pax_headers = {"GNU.sparse.map": "0,0", "GNU.sparse.size": str(num_bytes)}
    return found


BAD_ARCHIVES = {
    "a file of a TiB in holes": archive_of(holes(1 << 40)),
    "up": archive_of(member("source/../evil")),
    "absolute": archive_of(member("/etc/evil")),
    "elsewhere": archive_of(member("elsewhere/a")),
    "git": archive_of(member("source/.git/config")),
    "twice": archive_of(member("source/a"), member("source/a")),
    "absolute link": archive_of(member("source/a", tarfile.SYMTYPE, "/etc/passwd")),
    "link up": archive_of(member("source/a", tarfile.SYMTYPE, "../../etc/passwd")),
    "hard link": archive_of(member("source/a", tarfile.LNKTYPE, "source/b")),
    "pipe": archive_of(member("source/a", tarfile.FIFOTYPE)),
    "device": archive_of(member("source/a", tarfile.CHRTYPE)),
    "cut off": archive_of(member("source/a"))[:-9],
    "no tar": gzip.compress(b"no tar" * 1000),
    "no gzip": b"no gzip",
    "empty": b"",
}


@pytest.mark.parametrize("content", BAD_ARCHIVES.values(), ids=BAD_ARCHIVES)  # their bytes have the time in them
def test_archives_of_others_lead_nowhere(content):
    with pytest.raises(CheckpointError, match="is damaged"):
        unpack(content, "x")


@pytest.mark.parametrize(
    "files",
    [
        {  # none of these leads out alone
            "x/y/d": SourceFile(b"../..", is_link=True),
            "l": SourceFile(b"x/y/d/..", is_link=True),
        },
        {"a": SourceFile(b""), "a/b": SourceFile(b"")},
        {"a": SourceFile(b"c", is_link=True), "a/b": SourceFile(b"")},
    ],
)
def test_nothing_is_written_through_a_link(files, tmp_path):
    with pytest.raises(CheckpointError, match=r"leads to|file and a folder"):
        write_source(unpack(pack(files), "x"), tmp_path / "source")
    assert list(tmp_path.iterdir()) == [tmp_path / "source"]


def test_a_bomb_is_refused(monkeypatch):
    monkeypatch.setattr(snapshot, "MOST_BYTES", 1000)
    monkeypatch.setattr(snapshot, "MOST_FILES", 1)
    with pytest.raises(CheckpointError, match="larger than a snapshot"):
        unpack(pack({"a": SourceFile(bytes(1 << 20))}), "x")
    with pytest.raises(CheckpointError, match="more than 1 files"):
        unpack(pack({"a": SourceFile(b""), "b": SourceFile(b"")}), "x")
