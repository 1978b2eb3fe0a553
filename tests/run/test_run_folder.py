import errno
import json
import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from runner.base import timeline
from runner.base.errors import CheckpointError, OutputError
from runner.run.run_folder import (
    NAMES,
    RunFolder,
    check_writable,
    is_alive,
    make_run_folder,
    new_run_name,
    read_record,
    rename_run,
)
from runner.tools.runs.past import elapsed_seconds


class Clock(datetime):
    """A clock that goes, and is set, only when told to."""

    moment = datetime(2026, 1, 2, tzinfo=UTC)
    seconds = 0.0

    @classmethod
    def now(cls, tz=None):
        return cls.moment

    @classmethod
    def pass_by(cls, hours):
        cls.moment += timedelta(hours=hours)
        cls.seconds += 3600 * hours

    @classmethod
    def set_back(cls, hours):
        cls.moment -= timedelta(hours=hours)


@pytest.fixture
def clock(monkeypatch):
    class Own(Clock):
        pass

    monkeypatch.setattr(timeline, "datetime", Own)
    monkeypatch.setattr(timeline.time, "monotonic", lambda: Own.seconds)
    return Own


def test_names_carry_date_and_time():
    assert re.fullmatch(r"2026-01-02/03-04-05-[0-9a-f]{6}", str(new_run_name(datetime(2026, 1, 2, 3, 4, 5))))


def test_a_thousand_starts_at_once_make_a_thousand_folders(tmp_path):
    with ThreadPoolExecutor(16) as pool:
        paths = list(pool.map(lambda _: make_run_folder(tmp_path), range(1000)))
    assert len(set(paths)) == 1000
    assert all(path.is_dir() for path in paths)


def test_a_folder_that_cannot_be_made_is_named_and_leaves_nothing(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match=r"is a file, not a folder"):
        check_writable(tmp_path / "file" / "outputs")
    with pytest.raises(OutputError, match="/proc"):
        check_writable(Path("/proc/outputs"))
    check_writable(tmp_path / "new" / "outputs")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_the_record_follows_the_run(tmp_path):
    folder = RunFolder(tmp_path)
    folder.begin({"command": "x"})
    record = read_record(tmp_path)
    assert (record["status"], record["attempts"], record["end"], record["error"]) == ("running", 1, None, None)
    folder.update(best={"metric": "val_top1", "value": 0.5, "epoch": 1})
    folder.end("failed", {"name": "X", "message": "y", "rank": 0})
    record = read_record(tmp_path)
    assert record["status"] == "failed"
    assert record["best"]["value"] == 0.5
    assert record["error"] == {"name": "X", "message": "y", "rank": 0}
    assert record["end"] >= record["start"]


def test_names_given_while_a_run_goes_on_stay(tmp_path):
    folder = RunFolder(tmp_path)
    folder.begin({"name": "first", "group": None, "tags": {"draft": True, "set": "v1"}, "notes": None})
    rename_run(tmp_path, name="second", tags={"set": "v2"}, removed=["draft"])
    folder.update(best={"metric": "val_top1", "value": 0.5, "epoch": 1})
    rename_run(tmp_path, notes="why", tags={})
    folder.end("completed")
    record = read_record(tmp_path)
    assert {key: record[key] for key in NAMES} == {
        "name": "second",
        "group": None,
        "tags": {"set": "v2"},
        "notes": "why",
    }
    assert (record["status"], record["best"]["epoch"]) == ("completed", 1)


def test_many_who_name_a_run_at_once_lose_no_tag(tmp_path):
    folder = RunFolder(tmp_path)
    folder.begin({"tags": {}})
    code = "import sys; from runner.run.run_folder import rename_run; from pathlib import Path\n"
    code += "for number in range(20): rename_run(Path(sys.argv[1]), tags={f'{sys.argv[2]}_{number}': number})"
    processes = [subprocess.Popen([sys.executable, "-c", code, str(tmp_path), name]) for name in "abc"]
    for number in range(20):
        folder.update(number=number)
    assert [process.wait() for process in processes] == [0, 0, 0]
    folder.end("completed")
    record = read_record(tmp_path)
    assert (len(record["tags"]), record["number"]) == (60, 19)


def test_the_end_of_a_run_is_recorded_on_a_full_disk(tmp_path, full_disk):
    folder = RunFolder(tmp_path)
    folder.begin({"command": "x"})
    full_disk.fill()
    with pytest.raises(OutputError, match="the disk is full"):
        folder.update(best=None)
    error = {"name": "OutputError", "message": "y" * 10_000, "rank": 0}
    folder.end("failed", error)
    assert (read_record(tmp_path)["status"], read_record(tmp_path)["error"]) == ("failed", error)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["logs", "run.json"]
    full_disk.free()
    RunFolder(tmp_path).reopen({"overrides": []}, best=None)
    assert (read_record(tmp_path)["status"], read_record(tmp_path)["attempts"]) == ("running", 2)


def test_a_run_does_not_begin_without_space_for_its_end(tmp_path, full_disk):
    full_disk.fill()
    with pytest.raises(OutputError, match=r"run\.json can't be written: the disk is full"):
        RunFolder(tmp_path).begin({})
    assert list(tmp_path.iterdir()) == []


def test_no_attempt_ends_before_it_starts_though_the_clock_is_set_back(tmp_path, clock, caplog):
    folder = RunFolder(tmp_path)
    folder.begin({})
    clock.pass_by(hours=2)
    clock.set_back(hours=1)
    folder.end("stopped")
    assert elapsed_seconds(tmp_path, read_record(tmp_path)) == 2 * 3600
    assert "the clock of this machine was set back: it is 1:00:00 behind" in caplog.text
    caplog.clear()
    resumed = RunFolder(tmp_path)
    resumed.reopen({}, best=None)
    assert "it is 1:00:00 behind" in caplog.text
    clock.pass_by(hours=0.5)
    resumed.end("completed")
    record = read_record(tmp_path)
    assert record["resumes"][0]["start"] == "2026-01-02T02:00:00+00:00"
    assert record["end"] == "2026-01-02T02:30:00+00:00"
    assert caplog.text.count("was set back") == 1


def test_times_that_can_not_be_read_are_ignored(tmp_path, clock):
    folder = RunFolder(tmp_path)
    resumes = [{}, {"start": 7}, {"start": "9999-12-31T23:59:59-23:59"}]
    folder.record = {"status": "running", "attempts": 1, "start": "long ago", "resumes": resumes}
    folder.end("failed")
    assert json.loads((tmp_path / "run.json").read_text())["end"] == "2026-01-02T00:00:00+00:00"


def test_a_process_that_records_the_end_of_another_reads_its_start(tmp_path, clock):
    RunFolder(tmp_path).begin({})
    clock.set_back(hours=1)
    launcher = RunFolder(tmp_path)
    launcher.record = read_record(tmp_path)
    launcher.end("failed")
    assert read_record(tmp_path)["end"] == read_record(tmp_path)["start"]


@pytest.mark.parametrize("content", [None, "", "{", "[]"])
def test_a_folder_that_is_no_run_is_named(tmp_path, content):
    if content is not None:
        (tmp_path / "run.json").write_text(content)
    with pytest.raises(CheckpointError, match=re.escape(str(tmp_path))):
        read_record(tmp_path)


def test_metrics_are_one_object_per_line(tmp_path):
    folder = RunFolder(tmp_path)
    folder.append_metrics({"epoch": 1})
    folder.append_metrics({"epoch": 2})
    assert [json.loads(line)["epoch"] for line in folder.metrics_file.read_text().splitlines()] == [1, 2]


HOLDER = """
import os, sys
from pathlib import Path
from runner.run.run_folder import RunFolder
folder = RunFolder(Path(sys.argv[1]))
with folder.hold():
    child = os.fork()  # as a data-loading worker, it outlives a killed parent for a moment
    if child == 0:
        print("held", flush=True)
        sys.stdin.read()
        os._exit(0)
    os.waitpid(child, 0)
"""


def test_a_killed_run_is_not_alive(tmp_path):
    (tmp_path / "logs").mkdir()
    assert not is_alive(tmp_path)
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
    )
    assert holder.stdin is not None
    assert holder.stdout is not None
    assert holder.stdout.readline() == b"held\n"
    assert is_alive(tmp_path)
    with pytest.raises(OutputError, match="another process"), RunFolder(tmp_path).hold():
        pass
    holder.kill()
    holder.wait()
    assert not is_alive(tmp_path), "a forked child of the dead process must not keep the lock"
    holder.stdin.close()
    holder.stdout.close()


def test_errors_while_the_lock_is_held_keep_their_class(tmp_path):
    folder = RunFolder(tmp_path)
    folder.log_file(0).parent.mkdir()
    with pytest.raises(ConnectionResetError), folder.hold():
        raise ConnectionResetError
    assert not is_alive(tmp_path)


@pytest.mark.parametrize("number", [errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP])
def test_a_file_system_without_locks_is_named(tmp_path, monkeypatch, number):
    def refuse(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    folder = RunFolder(tmp_path)
    folder.log_file(0).parent.mkdir()
    folder.log_file(0).touch()
    monkeypatch.setattr("fcntl.flock", refuse)
    message = rf"{tmp_path} lies on a file system without locks .*-o flock"
    with pytest.raises(OutputError, match=message), folder.hold():
        pass
    with pytest.raises(OutputError, match=message):
        is_alive(tmp_path)
