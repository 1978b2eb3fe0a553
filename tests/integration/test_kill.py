"""A run that is killed, again and again, and resumed ends where an unkilled one would have: the same bits and records.

`RUNNER_KILLS=100 pytest tests/integration/test_kill.py` (or `make test-kill`) kills more often than `make test` does.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from runner.checkpoint import CheckpointStore
from runner.files import sha256_of
from tests.conftest import ROOT

NUM_KILLS = int(os.environ.get("RUNNER_KILLS", "4"))
PHASES = ("training", "save", "evaluation", "start-up")


@pytest.fixture(scope="module")
def photos(tmp_path_factory) -> Path:
    """Image files of three classes, told apart by their colour."""
    root = tmp_path_factory.mktemp("photos")
    generator = np.random.default_rng(0)
    for split, count in (("train", 14), ("val", 9)):
        for label, name in enumerate(("red", "green", "blue")):
            (root / split / name).mkdir(parents=True)
            for number in range(count):
                pixels = generator.integers(0, 200, (36, 48, 3), dtype=np.uint8)
                pixels[..., label] += 55
                Image.fromarray(pixels).save(root / split / name / f"{number}.png")
    return root


def command(photos: Path, workers: int, *more: str) -> list[str]:
    return [
        sys.executable,
        "-m",
        "runner",
        *more,
        "data=folder",
        f"data.root={photos}",
        "data.image_size=32",
        "data.batch_size=8",
        f"data.workers={workers}",
        "optimizer.lr=0.02",
        "trainer.epochs=4",
        "trainer.ema_decay=0.8",
        "trainer.checkpoint_every=2",
        "trainer.print_every=1",
        "trainer.precision=fp32",
        "trainer.device=cpu",
    ]


def start(argv: list[str], cwd: Path) -> subprocess.Popen[bytes]:
    with (cwd / "stdout").open("wb") as log:
        return subprocess.Popen(
            argv,
            cwd=cwd,
            env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"},
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


def run_dir_in(folder: Path) -> Path | None:
    return next((path.parent for path in folder.glob("outputs/*/*/run.json")), None)


def phase_of(folder: Path) -> str:
    """What a run is doing, seen from outside."""
    run_dir = run_dir_in(folder)
    lines = [line for line in (folder / "stdout").read_text(errors="replace").splitlines() if "  step " in line]
    if run_dir is None or not lines:
        return "start-up"
    if any((run_dir / "checkpoints").glob(".*.tmp")):
        return "save"
    done, total = lines[-1].split("  step ")[1].split("  ")[0].split("/")
    return "evaluation" if done == total else "training"


def kill_in(phase: str, process: subprocess.Popen[bytes], folder: Path, randomness: random.Random) -> bool:
    """SIGKILL the whole process group once it is in a phase, at a random moment of it; False where it ended before."""
    if phase == "start-up":
        # No waiting for an outcome: the moment itself is what is tried.
        time.sleep(randomness.uniform(0.2, 4.0))
    else:
        while process.poll() is None and phase_of(folder) != phase:
            time.sleep(0.002)
        time.sleep(randomness.uniform(0, 0.05))
    if process.poll() is not None:
        return False
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    return True


def outcome(run_dir: Path) -> dict:
    """Everything about a finished run that must not depend on kills."""
    rows = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    record = json.loads((run_dir / "run.json").read_text())
    store = CheckpointStore(run_dir / "checkpoints", keep=2)
    last = store.load(store.pointed("last"))
    return {
        "status": record["status"],
        "best": record["best"],
        "rows": [{key: value for key, value in row.items() if "second" not in key} for row in rows],
        "model": sha256_of(run_dir / "model" / "model.safetensors"),
        "tensors": {
            f"{stem}/{name}": value.numpy().tobytes()
            for stem, group in last.tensors.items()
            for name, value in group.items()
        },
    }


@pytest.fixture(scope="module")
def unkilled(photos, tmp_path_factory) -> dict:
    folder = tmp_path_factory.mktemp("unkilled")
    assert start(command(photos, 0), folder).wait(timeout=200) == 0, (folder / "stdout").read_text()
    run_dir = run_dir_in(folder)
    assert run_dir is not None
    return outcome(run_dir)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_killed_run_ends_with_the_same_bits(photos, unkilled, tmp_path, workers):
    randomness = random.Random(workers)
    killed: Counter[str] = Counter()
    argv, attempt = command(photos, workers), 0
    while sum(killed.values()) < NUM_KILLS // 2:
        phase = PHASES[(attempt + workers) % len(PHASES)]
        process = start(argv, tmp_path)
        if not kill_in(phase, process, tmp_path, randomness):
            assert process.returncode == 0, (tmp_path / "stdout").read_text()
            if sum(killed.values()) < NUM_KILLS // 2:
                compare(tmp_path, unkilled)  # it ended before it could be killed; begin anew
                for path in list(tmp_path.iterdir()):
                    path.rename(tmp_path.with_name(f"{tmp_path.name}-{attempt}-{path.name}"))
                argv = command(photos, workers)
        else:
            killed[phase] += 1
            run_dir = run_dir_in(tmp_path)
            if run_dir is not None:
                argv = [sys.executable, "-m", "runner", "resume", f"run={run_dir}"]
        attempt += 1
    assert start(argv, tmp_path).wait(timeout=200) == 0, (tmp_path / "stdout").read_text()
    compare(tmp_path, unkilled)
    sys.stdout.write(f"kills, workers={workers}: {dict(killed)}\n")


def compare(folder: Path, unkilled: dict) -> None:
    run_dir = run_dir_in(folder)
    assert run_dir is not None
    found = outcome(run_dir)
    differing = [name for name, value in unkilled["tensors"].items() if found["tensors"].get(name) != value]
    assert differing == []
    assert {**found, "tensors": None} == {**unkilled, "tensors": None}
    assert not list((run_dir / "checkpoints").glob(".*")), "nothing half-written is left"


@pytest.mark.parametrize("phase", PHASES)
def test_a_stop_on_request_loses_nothing(photos, unkilled, tmp_path, phase):
    """SIGTERM to the whole group, loader processes included, as SLURM and Kubernetes send it."""
    process = start(command(photos, 2), tmp_path)
    if phase == "start-up":
        time.sleep(1.5)  # handlers stand long before, and torch is still being imported
    else:
        while process.poll() is None and phase_of(tmp_path) != phase:
            time.sleep(0.002)
    os.killpg(process.pid, signal.SIGTERM)
    assert process.wait(timeout=60) == 75, (tmp_path / "stdout").read_text()
    run_dir = run_dir_in(tmp_path)
    if run_dir is None:
        assert "before training began" in (tmp_path / "stdout").read_text()
        return
    assert json.loads((run_dir / "run.json").read_text())["status"] == "stopped"
    with pytest.raises(ProcessLookupError):
        os.killpg(process.pid, 0)
    argv = [sys.executable, "-m", "runner", "resume", f"run={run_dir}"]
    assert start(argv, tmp_path).wait(timeout=200) == 0, (tmp_path / "stdout").read_text()
    compare(tmp_path, unkilled)


def test_a_live_run_is_not_resumed(photos, tmp_path, run_cli):
    process = start([*command(photos, 0), "trainer.epochs=10000", "trainer.patience=null"], tmp_path)
    while phase_of(tmp_path) == "start-up":
        assert process.poll() is None, (tmp_path / "stdout").read_text()
        time.sleep(0.05)
    run_dir = run_dir_in(tmp_path)
    done = run_cli("resume", f"run={run_dir}")
    assert done.returncode == 2
    assert "another process is working on this run" in done.stderr
    assert json.loads((run_dir / "run.json").read_text())["status"] == "running"
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=60) == 75
    done = run_cli("resume", f"run={run_dir}", "trainer.max_steps=1")
    assert done.returncode == 0, done.stderr
    assert json.loads((run_dir / "run.json").read_text())["status"] == "completed"
