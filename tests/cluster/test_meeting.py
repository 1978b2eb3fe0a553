"""Every way in which processes that others have started meet, by processes with the variables of their starters; and
what becomes of a run whose ranks are killed, where the starter starts them again and where it does not."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.cluster.conftest import PAIR
from tests.conftest import ROOT, TINY

pytestmark = pytest.mark.cluster
LONG = ("data.num_train=160", "trainer.epochs=3", "trainer.print_every=1", "trainer.checkpoint_every=4")
TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2")


@pytest.fixture
def start(tmp_path):
    """Start a command in the background; whatever it says goes to a file. What is left of it is killed at the end."""
    started = []

    def run(*command, folder=tmp_path, **environment):
        folder.mkdir(exist_ok=True)
        with (folder / f"{len(started)}.txt").open("w") as out:
            process = subprocess.Popen(
                command,
                cwd=folder,
                env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        process.said = Path(out.name)
        started.append(process)
        return process

    yield run
    for process in started:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def runner(*overrides):
    return [sys.executable, "-m", "runner", *TINY, *PAIR, "trainer.epochs=1", *overrides]


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def ended_well(processes):
    codes = [process.wait(200) for process in processes]
    assert set(codes) == {0}, [process.said.read_text() for process in processes]


def the_run(folder, status="completed"):
    (file,) = folder.glob("outputs/*/*/run.json")
    record = json.loads(file.read_text())
    assert record["status"] == status, record
    return file.parent, record


def wait_until_said(process, words, seconds=120):
    deadline = time.monotonic() + seconds
    while words not in process.said.read_text():
        assert time.monotonic() < deadline and process.poll() is None, process.said.read_text()
        time.sleep(0.05)


def rank_processes(folder):
    """Processes that hold a log of this folder's runs open, by rank."""
    found = {}
    for link in Path("/proc").glob("[0-9]*/fd/2"):
        try:
            target = link.readlink()
        except OSError:
            continue  # It has ended, or is nobody's business.
        if target.is_relative_to(folder) and target.name.startswith("rank_"):
            found[int(target.stem.removeprefix("rank_"))] = int(link.parts[2])
    return found


def env_of(rank, port):
    return {"RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}


def bare_env_of(rank, port):
    return {"RANK": str(rank), "WORLD_SIZE": "2"}


def azure_tcp_of(rank, port):
    url = f"tcp://127.0.0.1:{port}"
    return {"AZ_BATCHAI_PYTORCH_INIT_METHOD": url, "AZ_BATCHAI_TASK_INDEX": str(rank)}


def azure_mpi_of(rank, port):
    mpi = {"OMPI_COMM_WORLD_RANK": str(rank), "OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_LOCAL_RANK": "0"}
    return {**mpi, "OMPI_COMM_WORLD_LOCAL_SIZE": "1", "AZ_BATCH_MASTER_NODE": f"127.0.0.1:{port}"}


@pytest.mark.parametrize(
    ("environment_of", "overrides"),
    [
        (env_of, ()),
        (bare_env_of, ("dist.rendezvous=tcp://127.0.0.1:{port}",)),
        (bare_env_of, ("dist.rendezvous=file://{folder}/meet",)),
        (azure_tcp_of, ("dist.nodes=2",)),
        (azure_mpi_of, ()),
    ],
)
def test_two_processes_meet(start, tmp_path, environment_of, overrides):
    port = free_port()
    line = runner(*(override.format(port=port, folder=tmp_path) for override in overrides))
    ended_well([start(*line, **environment_of(rank, port)) for rank in (1, 0)])
    run_dir, record = the_run(tmp_path)
    assert (record["world_size"], record["launcher"]) == (2, "adopted")
    assert {file.name for file in (run_dir / "logs").iterdir()} == {"rank_0.log", "rank_1.log", "run.json.lock"}


def test_azures_file_may_be_left_from_a_job_that_crashed(start, tmp_path):
    url = f"file://{tmp_path}/meet"

    def two(*overrides):
        line = runner("dist.nodes=2", *overrides)
        names = ("AZ_BATCHAI_PYTORCH_INIT_METHOD", "AZ_BATCHAI_TASK_INDEX")
        return [start(*line, **dict(zip(names, (url, str(rank)), strict=True))) for rank in (0, 1)]

    killed = two(*LONG)
    wait_until_said(killed[0], "step 3/")
    for process in killed:
        process.kill()
        process.wait()
    assert (tmp_path / "meet").is_file()
    ended_well(two())
    assert len(list(tmp_path.glob("outputs/*/*/run.json"))) == 2, "another job is another run"


@pytest.mark.parametrize("numbered", [True, False])
def test_two_machines_played_by_two_launchers(start, tmp_path, numbered):
    """Their second job meets at the same port; a rank that is killed is started again, on both."""
    one_after_another = ("-m", "hydra/sweeper=basic", "hydra/launcher=basic", f"sweep.dir={tmp_path}/outputs/sweep")
    line = [
        *runner(*LONG, "optimizer.lr=0.01,0.02"),
        *one_after_another,
        "dist.nodes=2",
        f"dist.rendezvous=127.0.0.1:{free_port()}",
        "dist.max_restarts=1",
    ]
    both = [start(*line, *([f"dist.node_rank={number}"] if numbered else [])) for number in (0, 1)]
    first = next(iter_started(both, "epoch 1/3  step 6/"))
    os.kill(rank_processes(tmp_path)[1], signal.SIGKILL)
    ended_well(both)
    assert "attempt 2, from checkpoint" in first.said.read_text()
    records = [json.loads((tmp_path / "outputs" / "sweep" / job / "run.json").read_text()) for job in ("0", "1")]
    assert [(record["status"], record["attempts"]) for record in records] == [("completed", 2), ("completed", 1)]


def iter_started(processes, words, seconds=120):
    """The process that says these words; rank 0 may be on either machine."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and all(process.poll() is None for process in processes):
        yield from (process for process in processes if words in process.said.read_text())
        time.sleep(0.05)
    raise AssertionError([process.said.read_text() for process in processes])


def test_torchrun_of_four(start, tmp_path):
    ended_well([start(*TORCHRUN[:-1], "--nproc-per-node=4", "-m", *runner()[2:])])
    assert the_run(tmp_path)[1]["world_size"] == 4


@pytest.mark.parametrize("rank", [0, 1])
def test_torchruns_restart_goes_on_in_the_same_folder(start, tmp_path, rank):
    process = start(*TORCHRUN, "--max-restarts=1", "-m", *runner(*LONG)[2:])
    wait_until_said(process, "epoch 1/3  step 6/")
    os.kill(rank_processes(tmp_path)[rank], signal.SIGKILL)
    ended_well([process])
    run_dir, record = the_run(tmp_path)
    assert record["attempts"] == 2
    assert [json.loads(row)["epoch"] for row in (run_dir / "metrics.jsonl").read_text().splitlines()] == [1, 2, 3]


def test_rank_0_that_is_killed_under_torchrun_leaves_no_run_that_seems_to_run(start, tmp_path):
    process = start(*TORCHRUN, "-m", *runner(*LONG, "trainer.epochs=100000")[2:])
    wait_until_said(process, "step 3/")
    os.kill(rank_processes(tmp_path)[0], signal.SIGKILL)
    assert process.wait(60) != 0
    error = the_run(tmp_path, "failed")[1]["error"]
    assert (error["name"], error["rank"]) == ("RankFailedError", 0)
    assert "rank 0 ended without an error message; rank 1 on" in error["message"]
