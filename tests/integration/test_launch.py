"""Many processes as a user meets them: real ones, started, killed and stopped.

`RUNNER_RESTARTS=20 pytest tests/integration/test_launch.py -k ranks_are_killed` (or `make test-kill`)
kills a rank more often.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import safetensors.torch
from PIL import Image

import runner
from runner.base.files import sha256_of
from runner.run.checkpoint import CheckpointStore
from tests.conftest import ROOT, SMALL_NET, TINY
from tests.made_package import make_package

NUM_RESTARTS = int(os.environ.get("RUNNER_RESTARTS", "1"))
OF_RESNET = (*TINY, "data.num_train=48", "dist.procs_per_node=2", "trainer.epochs=1")  # three full batches each
SHORT = (*OF_RESNET, *SMALL_NET)
# The epochs are long for a net that takes milliseconds per step: what happens to it shall happen within one.
ENDLESS = ("data.num_train=4000", "trainer.epochs=100000", "trainer.patience=null", "trainer.print_every=2")
# BatchNorm sees each rank's images only; a net without it computes the same however the images are spread.
NET_WITHOUT_BATCHNORM = """
from torch import nn

def net(num_classes):
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, stride=2), nn.ReLU(), nn.Conv2d(8, 16, 3, stride=2), nn.ReLU(),
        nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(64, num_classes),
    )
"""


@pytest.fixture
def start(tmp_path):
    """Start a command in the background, in an empty folder; whatever is left of it is killed at the end."""
    started = []

    def run(*command, **environment):
        process = subprocess.Popen(
            command,
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        return process

    yield run
    for process in started:
        for pid in [*ranks_of(process), process.pid]:
            if is_alive(pid):
                os.kill(pid, signal.SIGKILL)
        process.communicate()


def ranks_of(launcher):
    """The ranks of a launcher, in the order of their start."""
    children = [
        int(pid) for file in Path(f"/proc/{launcher.pid}/task").glob("*/children") for pid in file.read_text().split()
    ]
    return sorted(pid for pid in children if b"spawn_main" in Path(f"/proc/{pid}/cmdline").read_bytes())


def is_alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in ("Z", "X")
    except (FileNotFoundError, ProcessLookupError):
        return False


def wait_until_gone(pids, seconds=10):
    deadline = time.monotonic() + seconds
    while (left := [pid for pid in pids if is_alive(pid)]) and time.monotonic() < deadline:
        time.sleep(0.05)
    return left


def until_step(launcher, words="step 4/"):
    for line in launcher.stdout:
        if words in line:
            return ranks_of(launcher)
    raise AssertionError(launcher.stderr.read())


def the_run(folder):
    (run_file,) = folder.glob("outputs/*/*/run.json")
    return run_file.parent, json.loads(run_file.read_text())


def endless(start, *more, net=SHORT):
    launcher = start(sys.executable, "-m", "runner", *net, *ENDLESS, *more)
    return launcher, until_step(launcher)


def test_two_processes_learn_what_one_learns_from_the_same_global_batches(run_cli, tmp_path):
    site = make_package(tmp_path / "site", "small_net", NET_WITHOUT_BATCHNORM, small_net="small_net:net")
    weights, rows = [], []
    for size, procs in ((16, 1), (8, 2)):
        overrides = ["model=custom", "model.name=small_net", "optimizer.lr_scaling=none", "data.num_train=100"]
        overrides += [f"data.batch_size={size}", f"dist.procs_per_node={procs}", f"output_dir=of_{procs}/outputs"]
        done = run_cli(*OF_RESNET, *overrides, PYTHONPATH=f"{ROOT}:{site}")
        assert done.returncode == 0, done.stderr
        assert "leaked" not in done.stdout + done.stderr, "triton's bindings say so where Python frees all objects"
        run_dir, record = the_run(tmp_path / f"of_{procs}")
        assert (record["world_size"], record["status"]) == (procs, "completed")
        weights.append(safetensors.torch.load_file(run_dir / "model" / "model.safetensors"))
        rows.append(json.loads((run_dir / "metrics.jsonl").read_text()))
    largest = max((weights[0][name] - weights[1][name]).abs().max().item() for name in weights[0])
    assert largest < 1e-6
    assert rows[0]["step"] == rows[1]["step"]
    assert rows[0]["val_top1"] == rows[1]["val_top1"]
    assert rows[0]["train_loss"] == pytest.approx(rows[1]["train_loss"], rel=1e-5)
    assert "launch      elastic (2 processes, dist.procs_per_node = 2)" in done.stdout
    logs = {path.name for path in (run_dir / "logs").iterdir()}
    assert logs == {"rank_0.log", "rank_1.log", "launcher.log", "run.json.lock"}
    assert "dist.procs_per_node=2" in record["command"], "what was typed, not how the agent starts a process"


@pytest.mark.parametrize("starter", ["torchrun", pytest.param("mpirun", marks=pytest.mark.long)])
def test_adopted_ranks_make_one_run_folder(start, tmp_path, starter):
    python = [sys.executable, "-m", "runner", *OF_RESNET]
    if starter == "torchrun":
        command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", "-m", *python[2:]]
    elif shutil.which("mpirun") is None:
        pytest.skip("needs mpirun: apt-get install openmpi-bin")
    else:
        command = ["mpirun", "--allow-run-as-root", "--oversubscribe", "-np", "2", *python]
    process = start(*command)
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    run_dir, record = the_run(tmp_path)
    assert (record["status"], record["world_size"], record["launcher"]) == ("completed", 2, "adopted")
    assert out.count("run folder  ") == 1, "one rank speaks for all"
    assert {path.name for path in (run_dir / "logs").iterdir()} == {"rank_0.log", "rank_1.log", "run.json.lock"}


@pytest.mark.long
def test_ranks_of_different_configs_end_with_the_difference(start, tmp_path):
    script = f"exec {sys.executable} -m runner {' '.join(SHORT)} optimizer.lr=0.0$((RANK + 1))"
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", "--no-python"]
    process = start(*torchrun, "bash", "-c", script)
    _, err = process.communicate(timeout=120)
    assert process.returncode != 0
    assert "runner: LaunchError: rank 1 on" in err
    assert "optimizer.lr = 0.02 there, 0.01 here" in err
    assert not (tmp_path / "outputs").exists()


def test_a_sweep_within_torchrun_is_refused_with_the_right_way(run_cli):
    done = run_cli("-m", *TINY, "optimizer.lr=0.1,0.2", RANK="0", WORLD_SIZE="2")
    assert done.returncode == 2
    assert "LaunchError: a sweep (-m) within" in done.stderr
    assert "python -m runner -m dist.procs_per_node=N" in done.stderr


@pytest.mark.long
def test_a_named_error_keeps_its_name_message_and_exit_code_and_is_no_reason_to_restart(run_cli, tmp_path):
    divergent = ("trainer.epochs=2", "schedule=constant", "optimizer.lr=1e20", "trainer.print_every=1")
    done = run_cli(*SHORT, *divergent, "dist.max_restarts=2")
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith("runner: NonFiniteLossError: the training loss became infinite")
    run_dir, record = the_run(tmp_path)
    assert (record["status"], record["error"]["name"]) == ("failed", "NonFiniteLossError")
    assert record["attempts"] == 1
    assert {path.name for path in (run_dir / "logs").glob("*.error.json")} == {"rank_0.error.json", "rank_1.error.json"}
    assert "NonFiniteLossError" in (run_dir / "report.html").read_text()


# The static graph of a ResNet takes another way through DDP.
@pytest.mark.parametrize(
    ("rank", "net"), [pytest.param(0, OF_RESNET, id="0", marks=pytest.mark.long), pytest.param(1, SHORT, id="1")]
)
def test_when_one_rank_is_killed_all_end_and_it_is_named(start, tmp_path, rank, net):
    launcher, ranks = endless(start, net=net)
    os.kill(ranks[rank], signal.SIGKILL)
    _, err = launcher.communicate(timeout=60)
    assert wait_until_gone(ranks) == []
    assert launcher.returncode == 1
    run_dir, record = the_run(tmp_path)
    last = err.splitlines()[-1]
    assert f"runner: RankFailedError: rank {rank} on" in last
    assert "was killed by SIGKILL" in last
    assert last.endswith(f"its log: {run_dir}/logs/rank_{rank}.log")
    assert (record["status"], record["error"]["rank"]) == ("failed", rank)


@pytest.mark.long
def test_a_rank_that_hangs_ends_the_run_with_stacks_and_a_reason(start, tmp_path):
    launcher, ranks = endless(start, "dist.stall_timeout_seconds=3")
    os.kill(ranks[1], signal.SIGSTOP)
    _, err = launcher.communicate(timeout=60)
    assert wait_until_gone(ranks) == []
    assert launcher.returncode == 1
    assert "runner: StalledError: rank 0" in err.splitlines()[-1]
    assert f"local rank 1 (process {ranks[1]}) hangs" in err
    run_dir, record = the_run(tmp_path)
    assert record["error"]["name"] == "StalledError"
    assert "loop.py" in (run_dir / "logs" / "rank_0.log").read_text(), "its stacks are in its log"


@pytest.mark.long
def test_a_refused_resume_leaves_the_record_as_it_was(run_cli, tmp_path):
    photos = tmp_path / "photos"
    for split in ("train", "val"):
        for number, name in enumerate(("a", "b")):
            (photos / split / name).mkdir(parents=True)
            for image in range(8):
                Image.new("RGB", (32, 32), (image, 99 * number, 0)).save(photos / split / name / f"{image}.png")
    overrides = [item for item in SHORT if not item.startswith(("data", "dist"))]
    overrides += ["data=folder", f"data.root={photos}", "data.image_size=32", "data.batch_size=4", "data.workers=0"]
    run_dir = runner.fit(runner.load_config([*overrides, f"output_dir={tmp_path}/outputs"])).run_dir
    before = (run_dir / "run.json").read_bytes()
    Image.new("RGB", (32, 32)).save(photos / "train" / "a" / "9.png")
    done = run_cli("resume", f"run={run_dir}", "trainer.epochs=2", "dist.procs_per_node=2")
    assert done.returncode == 2, done.stderr
    assert "runner: CheckpointError: the data set has other images" in done.stderr.splitlines()[-1]
    assert (run_dir / "run.json").read_bytes() == before


@pytest.mark.long
def test_a_stop_that_one_rank_can_not_follow_ends_within_the_grace(start, tmp_path):
    launcher, ranks = endless(start, "trainer.grace_seconds=1", "trainer.checkpoint_every=2")
    os.kill(ranks[1], signal.SIGSTOP)
    os.kill(launcher.pid, signal.SIGTERM)
    _, err = launcher.communicate(timeout=60)
    assert wait_until_gone(ranks) == []
    assert launcher.returncode == 1
    assert "runner: GraceExceededError: asked to stop (SIGTERM), but not done within 1 seconds" in err.splitlines()[-1]
    run_dir, record = the_run(tmp_path)
    assert (record["status"], record["error"]["name"]) == ("failed", "GraceExceededError")
    assert CheckpointStore(run_dir / "checkpoints", keep=2).newest_valid()[0] is not None


@pytest.mark.long
def test_no_rank_survives_its_launcher(start):
    launcher, ranks = endless(start)
    assert len(ranks) == 2
    launcher.kill()
    assert wait_until_gone(ranks) == []


@pytest.mark.long
@pytest.mark.parametrize(("to", "net"), [("launcher", OF_RESNET), ("rank 1", SHORT)], ids=["launcher", "rank 1"])
def test_a_stop_on_request_is_no_failure(start, tmp_path, to, net):
    launcher, ranks = endless(start, "dist.max_restarts=3", net=net)
    os.kill(launcher.pid if to == "launcher" else ranks[1], signal.SIGTERM)
    _, err = launcher.communicate(timeout=60)
    assert launcher.returncode == 75, err
    assert "stopped on SIGTERM" in err
    assert wait_until_gone(ranks) == []
    run_dir, record = the_run(tmp_path)
    assert record["status"] == "stopped"
    assert [path.name for path in (run_dir / "checkpoints").iterdir() if path.is_dir()] == [
        (run_dir / "checkpoints" / "last").read_text().strip()
    ]
    assert list((run_dir / "logs").glob("*.error.json")) == []


@pytest.mark.long
def test_four_processes(run_cli, tmp_path):
    done = run_cli(*SHORT, "data.num_train=64", "dist.procs_per_node=4")
    assert done.returncode == 0, done.stderr
    run_dir, record = the_run(tmp_path)
    assert (record["status"], record["world_size"], record["launcher"]) == ("completed", 4, "elastic")
    assert "(0.001 × 4 processes)" in done.stdout
    assert len(list((run_dir / "logs").glob("rank_*.log"))) == 4


@pytest.mark.long
def test_a_run_whose_ranks_are_killed_and_hang_ends_as_one_whose_do_not(start, tmp_path):
    steps, seed = 6, random.Random(0)
    disturbances = [*[signal.SIGKILL] * NUM_RESTARTS, signal.SIGSTOP]
    epochs = len(disturbances) + 1
    overrides = [*SHORT, f"data.num_train={16 * steps}", f"trainer.epochs={epochs}"]
    overrides += ["trainer.checkpoint_every=2", "trainer.print_every=1", "trainer.patience=null"]
    restarted = ("output_dir=disturbed/outputs", f"dist.max_restarts={len(disturbances)}")
    launcher = start(sys.executable, "-m", "runner", *overrides, *restarted, "dist.stall_timeout_seconds=10")
    for epoch, number in enumerate(disturbances, 1):
        ranks = until_step(launcher, f"epoch {epoch}/{epochs}  step {seed.randint(1, steps)}/")
        victim = (epoch + 1) % 2
        os.kill(ranks[victim], number)
    _, err = launcher.communicate(timeout=200)
    assert launcher.returncode == 0, err
    assert f"local rank {victim} (process {ranks[victim]}) hangs" in err
    assert wait_until_gone(ranks) == []
    undisturbed = start(sys.executable, "-m", "runner", *overrides, "output_dir=undisturbed/outputs")
    assert undisturbed.communicate(timeout=300) and undisturbed.returncode == 0
    (run_dir, record), (other_dir, _) = the_run(tmp_path / "disturbed"), the_run(tmp_path / "undisturbed")
    assert (record["status"], record["attempts"], record["error"]) == ("completed", epochs, None)
    assert last_weights(run_dir) == last_weights(other_dir)
    assert len((run_dir / "metrics.jsonl").read_text().splitlines()) == epochs


def last_weights(run_dir):
    folder = run_dir / "checkpoints" / (run_dir / "checkpoints" / "last").read_text().strip()
    return {file.name: sha256_of(file) for file in folder.glob("*.safetensors")}
