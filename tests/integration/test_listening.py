"""At which addresses the processes of a run listen, and what those who reach them can do there."""

from __future__ import annotations

import base64
import json
import os
import pickle
import shutil
import signal
import socket
import subprocess
import sys
import time
from datetime import timedelta
from pathlib import Path

import pytest
import torch.distributed

from tests.conftest import ROOT, SMALL_NET, TINY
from tests.listening import descendants, is_loopback, listening

LONG = ("data.num_train=400", "trainer.patience=null", "trainer.print_every=1", "trainer.checkpoint_every=4")
RUNNER = (sys.executable, "-m", "runner", *TINY, *SMALL_NET, *LONG)
ENDLESS = ("trainer.epochs=100000",)


@pytest.fixture
def start(tmp_path):
    """Start a command in the background; what it says goes to a file. What is left of it is killed at the end."""
    started = []

    def run(*command, **environment):
        said = tmp_path / f"{len(started)}.txt"
        with said.open("w") as out:
            process = subprocess.Popen(
                command,
                cwd=tmp_path,
                env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        process.said = said
        started.append(process)
        return process

    yield run
    for process in started:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def wait_until(is_true, process, seconds=200):
    deadline = time.monotonic() + seconds
    while not is_true():
        assert process.poll() is None and time.monotonic() < deadline, process.said.read_text()
        time.sleep(0.05)


def wait_until_said(processes, words, seconds=200):
    """The first of these processes that says the words."""
    deadline = time.monotonic() + seconds
    while True:
        for process in processes:
            if words in process.said.read_text():
                return process
            assert process.poll() is None, process.said.read_text()
        assert time.monotonic() < deadline, [process.said.read_text() for process in processes]
        time.sleep(0.05)


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def _is_spawned(pid):
    return b"spawn_main" in Path(f"/proc/{pid}/cmdline").read_bytes()


def beyond_loopback(sockets):
    return {(address, port) for address, port in sockets if not is_loopback(address)}


def test_one_process_listens_nowhere(start):
    process = start(*RUNNER, *ENDLESS)
    wait_until_said([process], "step 3/")
    assert listening(descendants(process.pid)) == set()


@pytest.mark.long
def test_one_machine_listens_at_loopback_only(start):
    launcher = start(*RUNNER, *ENDLESS, "dist.procs_per_node=2")
    wait_until_said([launcher], "step 3/")
    found = listening(descendants(launcher.pid))
    assert found, "gloo listens"
    assert not beyond_loopback(found)
    assert listening([launcher.pid]) == set(), "nobody can tell the launcher anything"


@pytest.mark.long
def test_adopted_ranks_of_one_machine_listen_at_loopback_only(start):
    port = str(free_port())
    place = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    both = [start(*RUNNER, *ENDLESS, RANK=str(rank), **place) for rank in (0, 1)]
    wait_until_said(both, "step 3/")
    found = set().union(*(listening(descendants(process.pid)) for process in both))
    assert ("127.0.0.1", int(port)) in found
    assert not beyond_loopback(found)


@pytest.mark.long
def test_ranks_of_torchrun_add_nothing_beyond_loopback(start):
    torchrun = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")
    process = start(*torchrun, "-m", *RUNNER[2:], *ENDLESS)
    wait_until_said([process], "step 3/")
    own = descendants(process.pid) - {process.pid}
    assert len(own) >= 2
    assert not beyond_loopback(listening(own)), "what torchrun itself serves is not ours"


@pytest.mark.long
@pytest.mark.skipif(shutil.which("mpirun") is None, reason="needs mpirun: apt-get install openmpi-bin")
def test_ranks_of_mpirun_listen_at_loopback_only(start, tmp_path):
    process = start("mpirun", "--allow-run-as-root", "--oversubscribe", "-np", "2", *RUNNER, *ENDLESS)
    # mpirun gives it a terminal, on which steps are no lines.
    wait_until(lambda: list(tmp_path.glob("outputs/*/*/metrics.jsonl")), process)
    ranks = descendants(process.pid) - {process.pid}
    found = listening(ranks)
    assert found and not beyond_loopback(found), "what mpirun itself serves is not ours"


@pytest.mark.long
def test_trials_of_a_sweep_listen_nowhere(start, tmp_path):
    typed = ("-m", "optimizer.lr=0.01,0.02", "sweep.parallel=2", f"sweep.dir={tmp_path}/sweep")
    sweep = start(*RUNNER, *ENDLESS, *typed)
    wait_until(lambda: len(list(tmp_path.glob("sweep/[01]/checkpoints/last"))) == 2, sweep)
    assert listening(descendants(sweep.pid)) == set()


class Touch:
    """As a pickle: makes a file where it is read."""

    def __init__(self, file):
        self.file = file

    def __reduce__(self):
        return Path.touch, (self.file,)


@pytest.mark.long
def test_a_pickle_in_the_store_of_two_machines_is_read_by_nobody(start, tmp_path):
    """Two launchers play machines; what an intruder writes into their store survives a restart of all ranks."""
    port, evil = free_port(), tmp_path / "evil"
    dist = ("dist.nodes=2", f"dist.rendezvous=127.0.0.1:{port}", "dist.max_restarts=1", "trainer.epochs=1")
    both = [start(*RUNNER, *dist) for _ in range(2)]
    wait_until_said(both, "step 6/")
    found = set().union(*(listening(descendants(process.pid)) for process in both))
    assert ("127.0.0.1", port) in found
    assert not beyond_loopback(found)
    intrude(port, evil)
    (victim,) = (pid for pid in descendants(both[1].pid) if _is_spawned(pid))
    os.kill(victim, signal.SIGKILL)
    assert [process.wait(200) for process in both] == [0, 0], [process.said.read_text() for process in both]
    (record,) = [json.loads(file.read_text()) for file in tmp_path.glob("outputs/*/*/run.json")]
    assert (record["status"], record["attempts"]) == ("completed", 2)
    assert not evil.exists()


def intrude(port, evil):
    """Write pickles wherever PyTorch's own rendezvous, or anybody else, may look for a state."""
    timeout = timedelta(seconds=20)
    store = torch.distributed.TCPStore("127.0.0.1", port, is_master=False, wait_for_workers=False, timeout=timeout)
    state = base64.b64encode(pickle.dumps(Touch(evil)))
    run_id = f"runner-{store.get('runner/run').decode()}"
    for key in (f"torch.rendezvous.{run_id}", "runner/first", "runner/machine/1", "runner/machine/2", "runner/run"):
        store.set(key, state)
    assert pickle.loads(base64.b64decode(store.get("runner/first"))) is None
    assert evil.exists(), "it works where it is read"
    evil.unlink()
