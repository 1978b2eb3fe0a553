"""How loader processes behave when the processes around them get signals or die. Real processes, real signals."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from runner.base.process import freed_memory_kept
from runner.data.images.transforms import pipeline_of
from runner.data.loader.loader import TrainBatches
from runner.data.sources.synthetic import SyntheticSource

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="senders of signals are told apart on Linux only")

# Starts loaders and says so; what follows is each test's own.
PROGRAM = """
import sys
import numpy as np
from runner.data.loader.loader import TrainBatches
from runner.data.sources.synthetic import SyntheticSource
from runner.data.images.transforms import pipeline_of
source = SyntheticSource(np.zeros((4, 8, 8, 3), np.uint8), np.zeros(10**6, np.int64))
stream = TrainBatches(source, pipeline_of(()), seed=1, batch_size=4, rank=0, world_size=1, last_batch="keep",
                      workers=2, pin_memory=False).stream(0, 0, 1)
next(stream)
print("loading", flush=True)
"""


def batches() -> TrainBatches:
    source = SyntheticSource(np.zeros((4, 8, 8, 3), np.uint8), np.zeros(400, np.int64))
    return TrainBatches(
        source,
        pipeline_of(()),
        seed=1,
        batch_size=4,
        rank=0,
        world_size=1,
        last_batch="keep",
        workers=2,
        pin_memory=False,
    )


@pytest.mark.parametrize("name", ["INT", "TERM", "USR1", "USR2"])
def test_signals_from_elsewhere_do_not_end_loaders(name: str) -> None:
    with closing(batches().stream(0, 0, 1)) as stream:
        received = [next(stream)]
        loaders = [str(process.pid) for process in multiprocessing.active_children()]
        # By another process: who stops a run is never the training process itself.
        subprocess.run(["kill", f"-{name}", *loaders], check=True)
        received += stream
        assert len(received) == 100
        assert sorted(str(process.pid) for process in multiprocessing.active_children()) in ([], sorted(loaders))


def test_the_training_process_can_end_its_loaders() -> None:
    with closing(batches().stream(0, 0, 1)) as stream:
        next(stream)
        loaders = multiprocessing.active_children()
        for process in loaders:
            process.terminate()
            process.join(timeout=20)
        assert [process.exitcode for process in loaders] == [0, 0]


@pytest.fixture
def start() -> Iterator[Callable[[str], subprocess.Popen[str]]]:
    """A function that runs PROGRAM and what is given to it in a process of its own."""
    with ExitStack() as stack:

        def run(program: str) -> subprocess.Popen[str]:
            process = subprocess.Popen(
                [sys.executable, "-c", PROGRAM + program],
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                cwd=Path(__file__).parents[3],
                env={**os.environ, "OMP_NUM_THREADS": "1"},
            )
            stack.enter_context(process)
            stack.callback(process.kill)
            return process

        yield run


def test_a_program_that_fails_while_loading_ends(start: Callable[[str], subprocess.Popen[str]]) -> None:
    # Returns when all who hold the pipes have ended, the loaders too.
    process = start("raise ValueError('the end')\n")
    output, errors = process.communicate(timeout=60)
    assert (process.returncode, output) == (1, "loading\n"), errors
    assert errors.splitlines()[-1] == "ValueError: the end"
    assert "DataLoader" not in errors


def test_loaders_end_when_the_training_process_is_killed(start: Callable[[str], subprocess.Popen[str]]) -> None:
    process = start("import os, signal; os.kill(os.getpid(), signal.SIGKILL)\n")
    output, errors = process.communicate(timeout=60)
    assert (process.returncode, output) == (-signal.SIGKILL, "loading\n"), errors


def test_loaders_end_when_the_training_process_is_killed_before_they_are_ready(
    start: Callable[[str], subprocess.Popen[str]],
) -> None:
    process = start("""
import os, signal, time
from runner.data.loader import loader

def late(worker, ready=loader.prepare_worker):
    if worker == 0:
        os.kill(os.getppid(), signal.SIGKILL)
        while os.getppid() == parent:
            time.sleep(0.01)
    ready(worker)
    print("ready", flush=True)
    if worker == 0:
        time.sleep(10**6)

parent, loader.prepare_worker = os.getpid(), late
next(TrainBatches(source, pipeline_of(()), seed=1, batch_size=4, rank=0, world_size=1, last_batch="keep",
                  workers=1, pin_memory=False).stream(0, 0, 1))
""")
    output, errors = process.communicate(timeout=60)
    assert process.returncode == -signal.SIGKILL
    assert output in ("loading\nready\n", "loading\n"), errors


def private_bytes(pid: int) -> int:
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("Private_Dirty:"))


def test_a_loader_takes_no_more_memory_from_batch_to_batch() -> None:
    source = SyntheticSource(np.zeros((4, 64, 64, 3), np.uint8), np.zeros(4000, np.int64))
    big = replace(batches(), source=source, batch_size=50, workers=1)
    sizes = []
    with freed_memory_kept(), closing(big.stream(0, 0, 1)) as stream:
        for _ in stream:
            sizes += [private_bytes(process.pid or 0) for process in multiprocessing.active_children()]
    one_batch = 50 * 64 * 64 * 3
    assert len(sizes) > 60
    # Of more than 50 batches; how many are prepared at a time depends on what else the machine does.
    assert max(sizes[50:]) - sizes[10] < 10 * one_batch
