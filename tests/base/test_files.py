import errno
import json
import os
import signal
from pathlib import Path

import pytest

from runner.base import files
from runner.base.errors import OutputError
from runner.base.files import (
    append_line,
    check_new_file,
    locked,
    publish,
    replace,
    sha256_of,
    temporary_beside,
    write_atomic,
    write_json,
    write_new,
)


def test_a_file_is_replaced_as_a_whole(tmp_path):
    file = tmp_path / "a.json"
    write_json(file, {"é": 1})
    write_json(file, {"é": [2]})
    assert json.loads(file.read_text()) == {"é": [2]}
    assert [path.name for path in tmp_path.iterdir()] == ["a.json"]


@pytest.mark.parametrize("name", ["caf\udce9.png", "\ud800"])
def test_a_name_that_is_no_utf8_is_written_as_its_escape(tmp_path, name):
    write_json(tmp_path / "a.json", {"name": name})
    assert json.loads((tmp_path / "a.json").read_bytes()) == {"name": name}
    write_atomic(tmp_path / "a.html", f"<p>{name}</p>")
    assert ascii(name)[1:-1].encode() in (tmp_path / "a.html").read_bytes()


@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_a_failing_write_keeps_the_old_file_and_names_the_path(tmp_path, monkeypatch, call):
    file = tmp_path / "a.txt"
    write_atomic(file, "old")

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(*((os, "fsync") if call == "fsync" else (Path, "replace")), full)
    with pytest.raises(OutputError, match=r"a\.txt.*the disk is full"):
        write_atomic(file, "new")
    assert file.read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["a.txt"]


def test_not_a_number_is_no_json(tmp_path):
    with pytest.raises(ValueError, match="JSON"):
        write_json(tmp_path / "a.json", {"loss": float("nan")})
    assert not list(tmp_path.iterdir())


def test_lines_are_appended(tmp_path):
    append_line(tmp_path / "log", "one")
    append_line(tmp_path / "log", "two")
    assert (tmp_path / "log").read_text() == "one\ntwo\n"
    with pytest.raises(OutputError, match="missing"):
        append_line(tmp_path / "missing" / "log", "one")


def test_digest_of_a_file(tmp_path):
    (tmp_path / "a").write_bytes(b"abc")
    assert sha256_of(tmp_path / "a") == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"


@pytest.mark.parametrize("has_links", [True, False])
def test_a_new_file_never_takes_the_place_of_another(tmp_path, monkeypatch, has_links):
    def refuse(path: Path, target: Path) -> None:
        raise OSError(errno.EPERM, os.strerror(errno.EPERM))

    if not has_links:
        monkeypatch.setattr(Path, "hardlink_to", refuse)
    path = tmp_path / "a" / "new.bin"
    write_new(path, b"first")
    assert path.read_bytes() == b"first"
    with pytest.raises(OutputError, match="never overwritten"):
        write_new(path, b"second")
    assert path.read_bytes() == b"first"
    assert [item.name for item in path.parent.iterdir()] == ["new.bin"]


def test_a_finished_file_never_takes_the_place_of_another(tmp_path, monkeypatch):
    (tmp_path / "mine").write_text("mine")
    (tmp_path / "gone").symlink_to(tmp_path / "nowhere")
    for name in ("mine", "gone", "no/folder", "mine/file"):
        with pytest.raises(OutputError):
            check_new_file(tmp_path / name)
    check_new_file(tmp_path / "new")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["gone", "mine"]

    def no_links(*_):
        raise PermissionError(1, "Operation not permitted")

    for has_links in (True, False):
        if not has_links:
            monkeypatch.setattr(Path, "hardlink_to", no_links)
        made = tmp_path / ".made.tmp"
        made.write_text("made")
        with pytest.raises(OutputError, match="never overwritten"):
            publish(made, tmp_path / "mine")
        publish(made, tmp_path / f"new {has_links}")
        assert (tmp_path / f"new {has_links}").read_text() == "made"
        assert not made.exists()
    assert (tmp_path / "mine").read_text() == "mine"


def folder_with(path: Path, content: str) -> Path:
    path.mkdir()
    (path / "file").write_text(content)
    return path


@pytest.mark.parametrize("can_exchange", [True, False])
def test_a_folder_is_replaced_as_a_whole(tmp_path, monkeypatch, can_exchange):
    if not can_exchange:
        monkeypatch.setattr(files, "_exchange", lambda *_: False)
    old, new = folder_with(tmp_path / "a", "old"), folder_with(temporary_beside(tmp_path / "a"), "new")
    replace(new, old)
    assert (old / "file").read_text() == "new"
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


def test_a_new_folder_takes_the_place_of_an_empty_one_and_of_no_other(tmp_path):
    (tmp_path / "a").mkdir()
    publish(folder_with(tmp_path / "b", "first"), tmp_path / "a")
    with pytest.raises(OutputError, match="already exists and is never overwritten"):
        publish(folder_with(tmp_path / "b", "second"), tmp_path / "a")
    assert (tmp_path / "a" / "file").read_text() == "first"


def test_a_lock_has_one_holder_and_dies_with_it(tmp_path):
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        with locked(tmp_path / "lock"):
            os.write(writing, b"held")
            signal.pause()
    assert os.read(reading, 4) == b"held"
    with pytest.raises(BlockingIOError), locked(tmp_path / "lock"):
        pass
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    with locked(tmp_path / "lock"), pytest.raises(BlockingIOError), locked(tmp_path / "lock", wait_seconds=0.1):
        pass
