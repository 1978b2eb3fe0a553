"""A process that is the first of its container is stopped as any other."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT

NAMESPACE = ("unshare", "--user", "--map-root-user", "--pid", "--fork", "--kill-child")
PROGRAM = """
import os, signal, time
import runner.__main__ as door

def wait():
    while True:  # in steps: a signal that comes just before a long call would wait for the end of that call
        time.sleep(0.05)

def main():
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(writer, b"!")  # Python drops what comes before a forked process is ready
        wait()
    os.read(reader, 1)
    os.kill(child, signal.SIGTERM)
    print(os.getpid(), os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
    wait()

door.main = main
door.run_and_leave()
"""


def test_sigterm_ends_it_and_the_processes_forked_from_it():
    try:
        subprocess.run([*NAMESPACE, "true"], capture_output=True, check=True, timeout=60)
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"no namespace of processes can be made here: {error}")
    command = [*NAMESPACE, sys.executable, "-c", PROGRAM]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as outer:
        assert outer.stdout is not None
        try:
            assert outer.stdout.readline().split() == ["1", str(-signal.SIGTERM)]
            first = int(Path(f"/proc/{outer.pid}/task/{outer.pid}/children").read_text())
            os.kill(first, signal.SIGTERM)
            assert outer.wait(timeout=30) == 128 + signal.SIGTERM
        finally:
            outer.kill()
