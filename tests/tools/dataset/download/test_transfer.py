"""`dataset import input=https://…` with real servers on loopback; by http and a SHA-256 where TLS is not the point."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from collections import namedtuple
from pathlib import Path

import pytest

from runner.base.errors import DownloadError, InvalidDatasetError, OutputError, StoppedOnRequest
from runner.tools.dataset import importing, staging
from runner.tools.dataset.download import transfer

ROOT = Path(__file__).resolve().parents[4]


def sha256_of(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def pinned(served) -> str:
    return f"sha256={sha256_of(served.content)}"


def ranges(served) -> list[str | None]:
    return [headers.get("Range") for _, headers in served.requests]


def left(output: Path) -> list[str]:
    return sorted(path.name for path in output.parent.iterdir()) if output.parent.exists() else []


def unfinished(tmp_path: Path) -> Path:
    return tmp_path / "work" / ".photos.download" / "archive"


@pytest.fixture
def output(tmp_path) -> Path:
    return tmp_path / "work" / "photos"


def test_an_archive_becomes_class_folders(served, imported, output, capsys):
    imported(served.url, pinned(served))
    assert sorted(path.relative_to(output).as_posix() for path in output.rglob("*.bmp")) == [
        *("ants/0.bmp", "ants/1.bmp", "bees/2.bmp", "bees/3.bmp")
    ]
    assert left(output) == ["photos", "photos.import.json"]
    report = json.loads((output.parent / "photos.import.json").read_text())
    assert (report["input"], report["sha256"]) == (served.url, sha256_of(served.content))
    assert "to be sure of the same bytes" not in capsys.readouterr().out


def test_by_tls_without_a_sum_which_is_told(served_tls, imported, output, capsys):
    imported(served_tls.url)
    assert f"sha256={sha256_of(served_tls.content)}" in capsys.readouterr().out
    assert left(output) == ["photos", "photos.import.json"]


@pytest.mark.parametrize("is_chunked", [False, True])
def test_of_unknown_size(served, imported, output, is_chunked):
    served.is_chunked, served.tells_size = is_chunked, False
    imported(served.url, pinned(served))
    assert (output / "ants" / "0.bmp").exists()


@pytest.mark.parametrize("is_chunked", [False, True])
def test_a_broken_connection_is_continued_at_once(served, imported, output, is_chunked):
    served.break_after = [30_000, 20_000]
    served.is_chunked = is_chunked
    imported(served.url, pinned(served))
    assert ranges(served) == [None, "bytes=30000-", "bytes=50000-"]
    assert served.requests[1][1]["If-Range"] == '"1"'
    assert (output / "ants" / "0.bmp").exists()


def test_a_server_without_ranges_starts_over(served, imported, output):
    served.break_after, served.knows_ranges = [30_000], False
    imported(served.url, pinned(served))
    assert (output / "ants" / "0.bmp").exists()


def test_when_it_was_changed_serves_as_well(served, imported, output):
    served.etag, served.last_modified = 'W/"1"', "Mon, 06 Jan 2020 00:00:00 GMT"
    served.break_after = [30_000]
    imported(served.url, pinned(served))
    assert served.requests[1][1]["If-Range"] == served.last_modified


def test_what_nothing_tells_apart_starts_over(served, imported, output):
    served.etag, served.break_after = 'W/"1"', [30_000]
    imported(served.url, pinned(served))
    assert ranges(served) == [None, None]


@pytest.mark.parametrize("knows_if_range", [True, False])
def test_a_file_that_has_changed_meanwhile_starts_over(served_tls, imported, output, archive, knows_if_range):
    served_tls.content, served_tls.etag = b"x" * len(archive), '"old"'
    served_tls.break_after = [30_000] + 4 * [0]
    with pytest.raises(DownloadError, match=r"again and again \(0\.0 MB are kept; the same command resumes\)"):
        imported(served_tls.url)
    served_tls.content, served_tls.etag, served_tls.knows_if_range = archive, '"new"', knows_if_range
    imported(served_tls.url)
    assert json.loads((output.parent / "photos.import.json").read_text())["sha256"] == sha256_of(archive)


@pytest.mark.parametrize("content_range", ["bytes 5-9/10", "nonsense", "bytes 30000-40000/999999999"])
def test_another_part_than_was_asked_for_is_not_taken(served, imported, output, content_range):
    served.break_after, served.content_range = [30_000], content_range
    imported(served.url, pinned(served))
    assert ranges(served) == [None, "bytes=30000-", None]
    assert (output / "ants" / "0.bmp").exists()


def test_a_file_that_became_shorter_starts_over(served, imported, output, tmp_path, archive):
    served.content, served.break_after = archive + bytes(50_000), [len(archive) + 10, 0, 0, 0, 0]
    url_and_sum = (served.url, f"sha256={sha256_of(archive)}")
    with pytest.raises(DownloadError):
        imported(*url_and_sum)
    served.content = archive
    served.requests.clear()
    imported(*url_and_sum)
    assert ranges(served) == [f"bytes={len(archive) + 10}-", None]


def test_a_server_that_promises_more_than_it_has_is_given_up(served, imported, output):
    served.claimed, served.knows_ranges = len(served.content) + 1, False
    with pytest.raises(DownloadError, match=r"the connection closed before all of 0\.1 MB had been received, again"):
        imported(served.url, pinned(served))
    assert len(served.requests) == 5
    assert not output.exists()


@pytest.mark.parametrize("is_chunked", [False, True])
def test_an_endless_body_ends_at_the_limit(served, imported, output, is_chunked):
    served.is_endless, served.tells_size, served.is_chunked = True, False, is_chunked
    with pytest.raises(
        DownloadError, match=r"is larger than max_download_gib = 0\.001 GiB; if that is right, raise it"
    ):
        imported(served.url, pinned(served), "max_download_gib=0.001")
    assert left(output) == []


def test_a_file_beyond_the_limit_is_refused_before_it_comes(served, imported, output):
    served.claimed, served.hang_after = 10**18, 0
    with pytest.raises(DownloadError, match="is larger than max_download_gib = 32 GiB"):
        imported(served.url, pinned(served))
    assert left(output) == []


def test_a_file_beyond_the_disk_is_refused_before_it_comes(served, imported, output, monkeypatch):
    served.claimed, served.hang_after = 2 * 10**9, 0
    usage = namedtuple("usage", "total used free")(10**9, 0, 10**9)
    monkeypatch.setattr(staging.shutil, "disk_usage", lambda _: usage)
    with pytest.raises(OutputError, match=r"needs 2\.00 GB, but only 1\.00 GB are free"):
        imported(served.url, pinned(served))
    assert left(output) == []


def test_a_disk_that_gets_full_is_told_and_continued_when_it_is_not(served, imported, output, monkeypatch, tmp_path):
    reads = []

    def full(response, num_bytes):
        reads.append(num_bytes)
        if len(reads) == 2:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return response.read(1000)

    monkeypatch.setattr(transfer, "_read", full)
    with pytest.raises(OutputError, match="the disk is full; free space or choose another folder"):
        imported(served.url, pinned(served))
    assert unfinished(tmp_path).stat().st_size == 1000
    monkeypatch.undo()
    imported(served.url, pinned(served))
    assert ranges(served) == [None, "bytes=1000-"]


def test_another_sum_leaves_nothing(served, imported, output):
    with pytest.raises(InvalidDatasetError, match=f"its SHA-256 is {sha256_of(served.content)}, not {'0' * 64} as"):
        imported(served.url, f"sha256={'0' * 64}")
    assert left(output) == []


@pytest.mark.parametrize(
    "content", [b"<html>please log in</html>", b"", b"\x1f\x8b\x08\x00" + bytes(range(200)), b"\xfd7zXZ\x00x"]
)
def test_what_is_no_archive_leaves_nothing(served, imported, output, content):
    served.content = content
    with pytest.raises(InvalidDatasetError, match=r"is no zip or tar archive \(the server says application/x-test\)"):
        imported(served.url, pinned(served))
    assert left(output) == []


def test_a_refused_import_keeps_the_archive_for_the_next_try(served, imported, output, monkeypatch, tmp_path):
    with pytest.raises(InvalidDatasetError, match="raise max_unpacked_gib"):
        imported(served.url, pinned(served), "max_unpacked_gib=0.000001")
    assert unfinished(tmp_path).read_bytes() == served.content
    imported(served.url, pinned(served))
    assert len(served.requests) == 1
    assert left(output) == ["photos", "photos.import.json"]


@pytest.mark.parametrize(
    ("status", "said"),
    [
        (401, r"answered 401 \(Unauthorized\); it requires a login"),
        (403, "it requires a login"),
        (404, r"answered 404 \(Not Found\); there is nothing at this address"),
        (407, "the proxy requires a login"),
        (416, "answered 416"),
        (503, r"answered 503 \(Service Unavailable\); try again later"),
        (204, "answered with status 204"),
        (799, "answered 799; is the address right"),
    ],
)
def test_refusals_of_the_server(served, imported, output, status, said):
    served.status = status
    with pytest.raises(DownloadError, match=said):
        imported(served.url, pinned(served))
    assert left(output) == []


def test_a_request_to_stop_keeps_what_has_come(served, imported, output, monkeypatch, tmp_path):
    read = transfer._read

    def stopped(response, num_bytes):
        os.kill(os.getpid(), signal.SIGTERM)
        return read(response, 5000)

    monkeypatch.setattr(transfer, "_read", stopped)
    with pytest.raises(StoppedOnRequest, match=r"stopped on SIGTERM; nothing was imported \(0\.0 MB are kept"):
        imported(served.url, pinned(served))
    assert unfinished(tmp_path).read_bytes() == served.content[:5000]


def test_a_process_that_was_killed_is_continued_to_the_same_bytes(served, output, tmp_path, monkeypatch):
    served.hang_after = 50_000
    output.parent.mkdir()
    argv = [sys.executable, "-m", "runner", "dataset", "import", "workers=0", pinned(served)]
    argv += [f"input={served.url}", f"output={output}"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(argv, env=environment, cwd=tmp_path, stdout=subprocess.DEVNULL) as process:
        while process.poll() is None and (
            not unfinished(tmp_path).exists() or unfinished(tmp_path).stat().st_size < 50_000
        ):
            time.sleep(0.01)
        process.kill()
    assert process.returncode == -signal.SIGKILL
    served.hang_after = None
    served.go_on.set()
    before = importing.open_source
    seen = []
    monkeypatch.setattr(
        importing, "open_source", lambda call, path: seen.append(path.read_bytes()) or before(call, path)
    )
    from runner.cli.commands.dataset import import_

    assert import_.run(["workers=0", f"input={served.url}", f"output={output}", pinned(served)]) == 0
    assert ranges(served) == [None, "bytes=50000-"]
    assert seen == [served.content]
    assert left(output) == ["photos", "photos.import.json"]
