"""Real processes that leave: nothing that Python does at its end is lost, except for the time."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.conftest import ROOT

PROGRAM = """
import atexit, sys, threading, time
from runner.base.process import leave

class Kept:
    def __del__(self):
        print("freed")

kept = Kept()
kept.itself = kept
atexit.register(print, "registered first, called last")
atexit.register(print, "registered last, called first")
has_begun = threading.Event()

def work():
    has_begun.wait()
    print("thread")

threading.Thread(target=work).start()
sys.stdout.write("unflushed\\n")
has_begun.set()
leave(75)
"""


def run(*arguments: str, **more: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments], cwd=ROOT, capture_output=True, text=True, check=False, timeout=60, **more
    )  # type: ignore[call-overload,no-any-return]


def test_threads_exit_functions_and_output_are_waited_for_and_objects_are_not():
    done = run("-c", PROGRAM)
    lines = done.stdout.splitlines()
    assert done.returncode == 75, done.stderr
    assert sorted(lines[:2]) == ["thread", "unflushed"]
    assert lines[2:] == ["registered last, called first", "registered first, called last"]


@pytest.mark.parametrize("watcher", ["cProfile", "trace"])
def test_who_watches_sees_the_end(watcher, tmp_path):
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    options = ["-o", str(tmp_path / "profile")] if watcher == "cProfile" else ["--count", f"--coverdir={tmp_path}"]
    done = run("-m", watcher, *options, str(program), env={"PYTHONPATH": str(ROOT)})
    assert "freed" in done.stdout
    assert len(list(tmp_path.iterdir())) > 1, "what the watcher writes at its end"


def test_the_command_line_leaves_with_its_exit_code():
    assert run("-m", "runner", "--version").stdout.startswith("runner ")
    assert run("-m", "runner", "trainer.epchos=5").returncode == 2


@pytest.mark.parametrize("is_buffered", [True, False])
def test_an_output_that_nobody_reads_is_no_defect(is_buffered):
    environment = {**os.environ, "PYTHONUNBUFFERED": "" if is_buffered else "1"}
    reader, writer = os.pipe()
    os.close(reader)
    with subprocess.Popen(
        [sys.executable, "-m", "runner", "--help"], cwd=ROOT, env=environment, stdout=writer, stderr=subprocess.PIPE
    ) as process:
        os.close(writer)
        assert process.stderr is not None
        told = process.stderr.read()
    assert process.returncode == 141
    assert told == b""


def test_a_training_goes_on_when_nobody_reads_its_messages(tiny):
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "runner", *tiny("trainer.epochs=1")]
    done = subprocess.run(command, cwd=ROOT, stdout=writer, stderr=subprocess.PIPE, text=True, check=False, timeout=120)
    os.close(writer)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""


def test_a_closed_output_is_no_defect():
    done = subprocess.run(
        ["bash", "-c", f"{sys.executable} -m runner validate >&- 2>&-"], cwd=ROOT, check=False, timeout=60
    )
    assert done.returncode == 0
