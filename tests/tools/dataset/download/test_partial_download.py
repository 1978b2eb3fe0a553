from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from runner.base.errors import OutputError
from runner.base.files import locked
from runner.tools.dataset.download.partial_download import DownloadState, PartialDownload
from tests.tools.dataset.download.test_transfer import left, pinned


def begun(output: Path, identity: str = "a", validator: str | None = '"1"') -> PartialDownload:
    unfinished = PartialDownload.beside(output, identity)
    unfinished.lock.parent.mkdir(exist_ok=True)
    unfinished.begin(DownloadState(validator=validator, total=4, content_type=None))
    unfinished.file.write_bytes(b"ab")
    return unfinished


def loaded(output: Path, identity: str = "a") -> PartialDownload:
    unfinished = PartialDownload.beside(output, identity)
    unfinished.load()
    return unfinished


def test_it_is_found_again_by_the_same_file_only(tmp_path):
    output = tmp_path / "photos"
    begun(output)
    assert loaded(output).num_bytes() == 2
    assert loaded(output).state == DownloadState(validator='"1"', total=4, content_type=None)
    assert loaded(output, "b").num_bytes() == 0


@pytest.mark.parametrize(
    "change",
    [{"total": -1}, {"total": True}, {"total": "4"}, {"validator": 5}, {"validator": "a\r\nX: y"}, {"identity": 1}],
)
def test_a_state_that_can_not_be_is_none(tmp_path, change):
    state = tmp_path / ".photos.download" / "state.json"
    begun(tmp_path / "photos")
    state.write_text(json.dumps(json.loads(state.read_text()) | change))
    assert loaded(tmp_path / "photos").state is None
    state.write_text("[")
    assert loaded(tmp_path / "photos").state is None


def test_beginning_anew_forgets_the_old_bytes_first(tmp_path, monkeypatch):
    unfinished = begun(tmp_path / "photos")
    monkeypatch.setattr("runner.tools.dataset.download.partial_download.write_json", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        unfinished.begin(DownloadState(validator='"2"', total=9, content_type=None))
    assert loaded(tmp_path / "photos").num_bytes() == 0


@pytest.mark.parametrize("name", ["", "archive", "lock", "state.json"])
@pytest.mark.parametrize("kind", ["link", "fifo"])
def test_what_others_have_put_there_is_neither_followed_nor_opened(served, imported, tmp_path, name, kind):
    folder = tmp_path / "work" / ".photos.download"
    (folder if name else folder.parent).mkdir(parents=True)
    outside = tmp_path / "outside"
    (folder / name).symlink_to(outside) if kind == "link" else os.mkfifo(folder / name)
    with pytest.raises(OutputError, match="a download needs this name"):
        imported(served.url, pinned(served))
    assert not outside.exists()


def test_two_do_not_download_the_same(served, imported, tmp_path):
    with (
        locked(tmp_path / "work" / ".photos.download" / "lock"),
        pytest.raises(OutputError, match="another process downloads its images right now"),
    ):
        imported(served.url, pinned(served))
    assert served.requests == []
    imported(served.url, pinned(served))
    assert left(tmp_path / "work" / "photos") == ["photos", "photos.import.json"]


def test_a_name_that_gets_too_long_is_named(served, imported, tmp_path):
    with pytest.raises(OutputError, match="this path is too long for its file system"):
        imported(served.url, pinned(served), f"output={tmp_path / ('x' * 250)}")
