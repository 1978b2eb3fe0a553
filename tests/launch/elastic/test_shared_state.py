import os
import subprocess
import sys

from tests.conftest import ROOT

# As the launcher ends itself where its main thread waits for a machine that can't be reached any more.
CUT_OFF = """
import multiprocessing, os, sys
from runner.launch.elastic.shared_state import SharedState, forwarded_stop_signals

with forwarded_stop_signals(SharedState(1)):
    held = multiprocessing.get_context("spawn").Event()
    print(os.environ.get("PYTHONWARNINGS"), file=sys.stderr)
    print("runner: the reason", file=sys.stderr, flush=True)
    os._exit(1)
"""


def test_nothing_is_said_after_the_reason_by_a_launcher_that_ends_itself():
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "default"}
    # The pipe is at its end once the tracker of semaphores, which inherits it, has ended too.
    done = subprocess.run(
        [sys.executable, "-c", CUT_OFF], env=environment, capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 1
    assert done.stderr.splitlines() == ["default", "runner: the reason"], "the user's own choice is as it was"
