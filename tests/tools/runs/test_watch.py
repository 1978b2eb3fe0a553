import json
import subprocess
import sys
import threading

import pytest

from runner.base.errors import CheckpointError
from runner.cli.commands.runs.watch import run
from runner.run.run_folder import RunFolder, read_record
from runner.tools.runs.watch import LogTail, follow
from tests.made_runs import make_run


def test_only_whole_new_lines_are_read_and_what_a_terminal_obeys_is_shown(tmp_path):
    folder = make_run(tmp_path / "a")
    log = folder / "logs" / "rank_0.log"
    log.write_text("".join(f"line {number}\n" for number in range(20)) + "half")
    tail = LogTail(folder)
    assert tail.read() == [f"line {number}" for number in range(12, 20)]
    with log.open("a") as file:
        file.write(" a line\n\x1b[31mred\n")
    assert tail.read() == ["half a line", r"\x1b[31mred"]
    assert tail.read() == []


def test_a_run_without_a_log_has_no_lines(tmp_path):
    assert LogTail(tmp_path).read() == []


def test_a_run_is_followed_to_its_end(tmp_path):
    folder = make_run(tmp_path / "a", status="running", end=None)
    seen, has_begun = [], threading.Event()

    def watch():
        for entry in follow(folder, every_seconds=0.01):
            seen.append(entry)
            has_begun.set()

    run_folder = RunFolder(folder)
    run_folder.record = read_record(folder)
    with run_folder.hold():
        (folder / "logs" / "rank_0.log").write_text("begins\n")
        thread = threading.Thread(target=watch)
        thread.start()
        assert has_begun.wait(60)
        with (folder / "logs" / "rank_0.log").open("a") as file:
            file.write("ends\n")
        run_folder.end("completed")
    thread.join(60)
    assert seen[:2] == ["begins", "ends"]
    assert seen[2].status == "completed"


@pytest.mark.parametrize(
    ("status", "code", "said"),
    [
        ("completed", 0, "a completed, after 2 min 05 s, best val_top1 90.00%"),
        ("pruned", 0, "a pruned"),
        ("stopped", 1, "a stopped"),
        ("running", 1, "a died"),
    ],
)
def test_the_end_is_said(tmp_path, capsys, status, code, said):
    assert run([f"run={make_run(tmp_path / 'a', status=status)}"]) == code
    assert said in capsys.readouterr().out.splitlines()[-1]


def test_what_is_no_run_is_named(tmp_path):
    with pytest.raises(CheckpointError, match="is no run folder"):
        run([f"run={tmp_path}"])


@pytest.mark.long
def test_a_training_in_another_process_is_watched(tiny, tmp_path):
    """The two processes have nothing in common but the folder."""
    training = subprocess.Popen([sys.executable, "-m", "runner", *tiny("run.name=seen")], cwd=tmp_path)
    try:
        while not (found := list(tmp_path.glob("outputs/*/*/run.json"))):
            assert training.poll() is None
        command = [sys.executable, "-m", "runner", "runs", "watch", f"run={found[0].parent}", "every_seconds=0.1"]
        watching = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    finally:
        assert training.wait(120) == 0
    assert "completed, after" in watching.stdout.splitlines()[-1]
    assert "2/2" in watching.stdout
    assert json.loads(found[0].read_text())["name"] == "seen"
