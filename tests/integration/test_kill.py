"""A run that is killed, again and again, and resumed ends where an unkilled one would have: the same bits and records.

`RUNNER_KILLS=100 pytest tests/integration/test_kill.py` (or `make test-kill`) kills more often than `make test` does.
Where a kill lands is told by what the run has written: it is aimed at a phase that is seen to have begun, at a random
moment within, and counted for the phase that the files, which no longer change, then show.
"""

from __future__ import annotations

import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from dataclasses import dataclass
from itertools import cycle, islice
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from runner.base.files import sha256_of
from runner.run.checkpoint import CheckpointStore
from tests.conftest import ROOT

EPOCHS, STEPS = 4, 6  # steps of each epoch
NUM_KILLS = int(os.environ.get("RUNNER_KILLS", "4"))
# Ranks and loader processes. Both values of both in the short test, all four combinations in the long one.
CASES = [(2, 0), (1, 2)] if NUM_KILLS < 20 else [(2, 0), (1, 2), (2, 2), (1, 0)]
LAYERS = (
    "model=timm",
    "model.name=test_vit",
    "model.img_size=64",
    "optimizer=adamw",
    "optimizer.lr=0.001",
    "optimizer.lr_scaling=none",
    "optimizer.layer_decay=0.5",
    "optimizer.groups=[{part: head, lr_multiplier: 10}]",
    "trainer.freeze_backbone_epochs=2",
    "trainer.unfreeze=[{after_epochs: 1, pattern: 'blocks.*'}]",
    "model.checkpoint_activations=true",
)
PHASES = ("training", "start-up", "save", "evaluation")
AIMS = (*PHASES, "end")
# Longest time in seconds between the sign that a phase has begun and the kill.
MOST_SECONDS = {"training": 0.1, "start-up": 3.0, "save": 0.03, "evaluation": 0.1, "end": 0.3}


@pytest.fixture(scope="module")
def photos(tmp_path_factory) -> Path:
    """Image files of three classes, told apart by their colour."""
    root = tmp_path_factory.mktemp("photos")
    generator = np.random.default_rng(0)
    for split, count in (("train", 15), ("val", 20)):
        for label, name in enumerate(("red", "green", "blue")):
            (root / split / name).mkdir(parents=True)
            for number in range(count):
                pixels = generator.integers(0, 200, (36, 48, 3), dtype=np.uint8)
                pixels[..., label] += 55
                Image.fromarray(pixels).save(root / split / name / f"{number}.png")
    return root


def command(photos: Path, ranks: int, workers: int) -> list[str]:
    return [
        sys.executable,
        "-m",
        "runner",
        "model=torchvision",
        "model.name=shufflenet_v2_x0_5",
        "data=folder",
        f"data.root={photos}",
        "data.image_size=64",  # or BatchNorm would see as few numbers as a rank has images
        f"data.batch_size={8 // ranks}",
        f"data.workers={workers}",
        f"dist.procs_per_node={ranks}",
        "dist.backend=gloo",
        "optimizer.lr=0.001",
        "optimizer.lr_scaling=none",
        f"trainer.epochs={EPOCHS}",
        "trainer.patience=null",
        "trainer.ema_decay=0.8",
        "trainer.checkpoint_every=4",
        "trainer.print_every=1",
        "trainer.precision=fp32",
        "trainer.device=cpu",
    ]


@dataclass
class Attempt:
    """A run in a process group of its own, and what can be seen of it from outside."""

    folder: Path
    process: subprocess.Popen[bytes]
    left_over: frozenset[str]
    """What earlier attempts have left half-written."""

    @classmethod
    def start(cls, argv: list[str], folder: Path) -> Attempt:
        folder.mkdir(exist_ok=True)
        with (folder / "stdout").open("wb") as log:
            process = subprocess.Popen(
                argv,
                cwd=folder,
                env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"},
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        left_over = frozenset(path.name for path in folder.glob("outputs/*/*/checkpoints/.*.tmp"))
        return cls(folder, process, left_over)

    @property
    def said(self) -> str:
        return (self.folder / "stdout").read_text(errors="replace")

    @property
    def run_dir(self) -> Path | None:
        return next((path.parent for path in self.folder.glob("outputs/*/*/run.json")), None)

    @property
    def is_running(self) -> bool:
        return self.process.poll() is None

    def ends_well(self) -> bool:
        return self.process.wait(timeout=250) == 0

    def phase(self) -> str:
        """What the run is doing, by what it has written and said."""
        run_dir, place = self.run_dir, self.place()
        if run_dir is None or place is None:
            return "start-up"
        if self.is_saving(run_dir / "checkpoints"):
            return "save"
        metrics = run_dir / "metrics.jsonl"
        num_rows = metrics.read_text().count("\n") if metrics.is_file() else 0
        if num_rows == EPOCHS:
            return "end"
        epoch, steps = place
        return "evaluation" if steps == STEPS and num_rows == epoch else "training"

    def place(self) -> tuple[int, int] | None:
        """Finished epochs, and steps of the next one that are done; None until it trains or evaluates."""
        said = self.said
        reports = re.findall(rf"epoch (\d+)/{EPOCHS}  step (\d+)/{STEPS}", said)
        if reports:
            return int(reports[-1][0]) - 1, int(reports[-1][1])
        went_on = re.search(r"from checkpoint (\d+)-(\d+)\n", said)
        if went_on is None:
            return None
        epoch, step = map(int, went_on.groups())
        has_steps_left = epoch < EPOCHS and step < (epoch + 1) * STEPS
        return None if has_steps_left else (epoch, step - epoch * STEPS)

    def is_saving(self, checkpoints: Path) -> bool:
        names = {path.name for path in checkpoints.glob("*")} if checkpoints.is_dir() else set()
        whole = sorted(name for name in names if re.fullmatch(r"\d+-\d+", name))
        pointer = checkpoints / "last"
        last = pointer.read_text().strip() if pointer.is_file() else None
        # Between the rename and the pointer it is being verified.
        return any(name.endswith(".tmp") for name in names - self.left_over) or bool(whole and whole[-1] != last)

    def kill(self) -> bool:
        """SIGKILL to all processes of the group at once; False where it had ended by itself."""
        if not self.is_running:
            return False
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        return True

    def wait_for(self, phase: str) -> None:
        while self.is_running and self.phase() != phase:
            time.sleep(0.002)

    def wait_until_it_catches_sigterm(self) -> None:
        status = Path(f"/proc/{self.process.pid}/status")
        while not int(re.search(r"SigCgt:\s*(\w+)", status.read_text())[1], 16) >> (signal.SIGTERM - 1) & 1:
            assert self.is_running, self.said
            time.sleep(0.01)


def outcome(run_dir: Path) -> dict:
    """Everything about a finished run that must not depend on kills."""
    rows = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    record = json.loads((run_dir / "run.json").read_text())
    store = CheckpointStore(run_dir / "checkpoints", keep=2)
    last = store.load(store.pointed("last"))
    return {
        "status": record["status"],
        "best": record["best"],
        # With the ledger: number and digest of the images of each epoch, in their order.
        "rows": [{key: value for key, value in row.items() if "second" not in key} for row in rows],
        "model": sha256_of(run_dir / "model" / "model.safetensors"),
        "tensors": {
            f"{stem}/{name}": value.numpy().tobytes()
            for stem, group in last.tensors.items()
            for name, value in group.items()
        },
    }


def compare(attempt: Attempt, unkilled: dict) -> None:
    run_dir = attempt.run_dir
    assert run_dir is not None
    found = outcome(run_dir)
    assert {name.partition("/")[0] for name in unkilled["tensors"]} == {"model", "optimizer", "ema"}
    assert found["tensors"].keys() == unkilled["tensors"].keys()
    differing = [name for name, value in unkilled["tensors"].items() if found["tensors"][name] != value]
    assert differing == []
    assert {**found, "tensors": None} == {**unkilled, "tensors": None}
    assert not list((run_dir / "checkpoints").glob(".*")), "nothing half-written is left"


@pytest.fixture(scope="module")
def unkilled(photos, tmp_path_factory):
    found: dict[int, dict] = {}

    def of(ranks: int) -> dict:
        if ranks not in found:
            attempt = Attempt.start(command(photos, ranks, 0), tmp_path_factory.mktemp("unkilled"))
            assert attempt.ends_well(), attempt.said
            assert attempt.run_dir is not None
            found[ranks] = outcome(attempt.run_dir)
            assert [row["train_images"] for row in found[ranks]["rows"]] == [45] * EPOCHS
        return found[ranks]

    return of


@pytest.mark.parametrize(
    ("ranks", "workers"), [pytest.param(*case, marks=() if case == (1, 2) else pytest.mark.long) for case in CASES]
)
def test_a_killed_run_ends_with_the_same_bits(photos, unkilled, tmp_path, ranks, workers):
    randomness, expected = random.Random(10 * ranks + workers), unkilled(ranks)
    offset = 2 * CASES.index((ranks, workers))
    aims = list(islice(cycle(AIMS), offset, offset + NUM_KILLS // len(CASES)))
    killed: Counter[str] = Counter()
    fresh = command(photos, ranks, workers)
    argv, folder = fresh, tmp_path / "0"
    while aims:
        attempt = Attempt.start(argv, folder)
        attempt.wait_for(aims[0])
        time.sleep(randomness.uniform(0, MOST_SECONDS[aims[0]]))
        if attempt.kill():
            phase = attempt.phase()
            killed[phase] += 1
            if phase in aims:
                aims.remove(phase)
            if attempt.run_dir is not None:
                killed["before the first checkpoint"] += not list(attempt.run_dir.glob("checkpoints/*-*/"))
                argv = [sys.executable, "-m", "runner", "resume", f"run={attempt.run_dir}"]
        else:
            # It ended before it could be killed, or said that it was completed already: begin anew.
            assert attempt.process.returncode == 0, attempt.said
            compare(attempt, expected)
            argv, folder = fresh, tmp_path / str(sum(killed.values()))
    attempt = Attempt.start(argv, folder)
    assert attempt.ends_well(), attempt.said
    compare(attempt, expected)
    sys.stdout.write(f"kills, ranks={ranks}, workers={workers}: {dict(killed)}\n")


@pytest.mark.long
def test_rates_by_layer_and_unfreezing_in_stages_go_on_after_a_kill(photos, tmp_path):
    whole = ends_the_same_after_a_kill([*command(photos, 2, 0), *LAYERS], tmp_path)
    assert whole.said.count("head, layer 7") == 2, "with weight decay and without, told by one process only"


@pytest.mark.long
def test_a_student_goes_on_after_a_kill(photos, tmp_path):
    teacher = Attempt.start([*command(photos, 1, 0), "trainer.epochs=1"], tmp_path / "teacher")
    assert teacher.ends_well(), teacher.said
    ends_the_same_after_a_kill([*command(photos, 2, 0), f"distill.run={teacher.run_dir}"], tmp_path)


@pytest.mark.long
@pytest.mark.parametrize(
    "settings",
    [
        ("optimizer=lars", "optimizer.lr=1"),
        ("optimizer=muon",),
        (
            "optimizer=lamb",
            "trainer.loss=binary_cross_entropy",
            "trainer.target_threshold=0.2",
            "trainer.cutmix_alpha=1",
            "data.eval_image_size=72",
        ),
    ],
    ids=lambda settings: settings[0],
)
def test_other_optimizers_go_on_after_a_kill(photos, tmp_path, settings):
    ends_the_same_after_a_kill([*command(photos, 1, 0), *settings], tmp_path)


@pytest.mark.long
def test_growing_and_repeated_images_go_on_after_a_kill(photos, tmp_path):
    growing = "data.progressive_resizing=[{epochs: 1, image_size: 48}, {epochs: 1, image_size: 56}]"
    points = 'schedule.points=[[0, 0.1], [1.5, 1], ["${trainer.epochs}", 0]]'
    settings = (growing, "data.repeats=3", "schedule=piecewise", points, "model.average_flips=true")
    whole = ends_the_same_after_a_kill([*command(photos, 2, 0), *settings], tmp_path)
    assert "48 px for 1 epoch, then 56 px for 1 epoch, then 64 px" in whole.said


def ends_the_same_after_a_kill(argv: list[str], tmp_path: Path) -> Attempt:
    """The unkilled run, whose bits and records the killed and resumed one is found to have."""
    whole = Attempt.start(argv, tmp_path / "whole")
    assert whole.ends_well(), whole.said
    killed = Attempt.start(argv, tmp_path / "killed")
    killed.wait_for("training")
    assert killed.kill()
    assert killed.run_dir is not None
    resumed = Attempt.start([sys.executable, "-m", "runner", "resume", f"run={killed.run_dir}"], killed.folder)
    assert resumed.ends_well(), resumed.said
    compare(resumed, outcome(whole.run_dir))
    return whole


@pytest.mark.parametrize(
    "phase", [pytest.param(phase, marks=() if phase == "training" else pytest.mark.long) for phase in PHASES]
)
def test_a_stop_on_request_loses_nothing(photos, unkilled, tmp_path, phase):
    """SIGTERM to the whole group, loader processes included, as SLURM sends it."""
    attempt = Attempt.start(command(photos, 1, 2), tmp_path)
    if phase == "start-up":
        attempt.wait_until_it_catches_sigterm()
    else:
        attempt.wait_for(phase)
    os.killpg(attempt.process.pid, signal.SIGTERM)
    assert attempt.process.wait(timeout=60) == 75, attempt.said
    run_dir = attempt.run_dir
    if run_dir is None:
        assert "training had not begun" in attempt.said
        return
    assert json.loads((run_dir / "run.json").read_text())["status"] == "stopped"
    with pytest.raises(ProcessLookupError):
        os.killpg(attempt.process.pid, 0)
    resumed = Attempt.start([sys.executable, "-m", "runner", "resume", f"run={run_dir}"], tmp_path)
    assert resumed.ends_well(), resumed.said
    compare(resumed, unkilled(1))


@pytest.mark.long
def test_a_live_run_is_not_resumed(photos, tmp_path, run_cli):
    attempt = Attempt.start([*command(photos, 1, 0), "trainer.epochs=10000"], tmp_path)
    while not re.search(r"  step \d", attempt.said):
        assert attempt.is_running, attempt.said
        time.sleep(0.05)
    run_dir = attempt.run_dir
    done = run_cli("resume", f"run={run_dir}")
    assert done.returncode == 2
    assert "another process is working on this run" in done.stderr
    assert json.loads((run_dir / "run.json").read_text())["status"] == "running"
    attempt.process.send_signal(signal.SIGINT)
    assert attempt.process.wait(timeout=60) == 75
    done = run_cli("resume", f"run={run_dir}", "trainer.max_steps=1")
    assert done.returncode == 0, done.stderr
    assert json.loads((run_dir / "run.json").read_text())["status"] == "completed"
