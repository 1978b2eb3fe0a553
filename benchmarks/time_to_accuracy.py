"""Seconds to an accuracy, from the command to the end of the epoch that reaches it.

    python benchmarks/time_to_accuracy.py TIMM_FOLDER SIGNS_FOLDER [--small] [--repeats 3]

TIMM_FOLDER is a clone of https://github.com/huggingface/pytorch-image-models; SIGNS_FOLDER the folder `Dataset` of a
clone of https://github.com/ardamavi/Sign-Language-Digits-Dataset (2,062 photographs of 100 × 100 px in ten class
folders, Apache 2.0; Mavi 2020, arXiv:2011.08927), of which a fifth is set aside.

Sides, each with a ResNet-18 on the same images of the same size: the recipe that ships; timm's train.py with the
optimizer and schedule that are its defaults, and with those of our recipe; a loop written by hand with those of our
recipe. All have steps of 16 images, and timm the number format that the runner chooses. A run is ended once it is
there; one that is not there after its epochs counts with all its time and is counted as missed.
"""

from __future__ import annotations

import csv
import itertools
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import side_by_side
from side_by_side import Side

import runner
from runner.data.sources.digits import ensure_digits
from runner.data.sources.paths import resolve_paths
from runner.dist.device import choose_device, choose_precision

BATCH_SIZE = 16
MOST_EPOCHS_OF_DEFAULTS = 30
_POLL_SECONDS = 0.05


@dataclass(frozen=True)
class Task:
    """Images to learn, and the recipe for them."""

    name: str
    goal: float
    """Top-1 on the validation images, in [0, 1]."""
    data: Path
    size: int
    epochs: int
    rate: float
    smoothing: float
    crop_scale: float
    """Smallest share of an image that a training crop shows; 1 for no crops."""
    flips: bool


def ours(task: Task, outputs: Path, seed: int) -> list[str]:
    root = [f"data.root={task.data}"] if task.name == "from_scratch" else []
    return [sys.executable, "-m", "runner", f"experiment={task.name}", *root, f"seed={seed}", f"output_dir={outputs}"]


def timm(task: Task, folder: Path, is_bf16: bool, *, has_our_recipe: bool, outputs: Path, seed: int) -> list[str]:
    recipe = ["--epochs", str(MOST_EPOCHS_OF_DEFAULTS)]
    if has_our_recipe:
        recipe = [
            "--opt", "adamw", "--weight-decay", "0.05", "--lr", str(task.rate), "--epochs", str(task.epochs),
            "--warmup-epochs", "1", "--warmup-lr", str(task.rate / 20), "--min-lr", "0", "--sched-on-updates",
            "--smoothing", str(task.smoothing),
        ]  # fmt: skip
    crops = ["--scale", str(task.crop_scale), "1", "--color-jitter", "0"] if task.crop_scale < 1 else ["--no-aug"]
    return [
        sys.executable, str(folder / "train.py"), "--data-dir", str(task.data), "--train-split", "train",
        "--val-split", "val", "--model", "resnet18", "--num-classes", "10", "--img-size", str(task.size),
        "--crop-pct", "1", "--batch-size", str(BATCH_SIZE), "--workers", "2", "--device", "cpu", "--channels-last",
        *(["--amp", "--amp-dtype", "bfloat16"] if is_bf16 else []), "--hflip", "0.5" if task.flips else "0",
        *crops, *recipe, "--seed", str(seed), "--output", str(outputs), "--log-interval", "1000",
    ]  # fmt: skip


def by_hand(task: Task, outputs: Path, seed: int) -> list[str]:
    given = (task.size, task.crop_scale, "flip" if task.flips else "none", task.epochs, task.rate, task.smoothing, seed)
    script = side_by_side.PEERS / "plain_loop.py"
    return [sys.executable, str(script), str(task.data), str(outputs), *map(str, given)]


def reached_by_rows(outputs: Path) -> list[float]:
    """Top-1 after each epoch, from a metrics.jsonl wherever it lies."""
    for file in outputs.glob("**/metrics.jsonl"):
        rows = [json.loads(line) for line in file.read_text().splitlines(keepends=True) if line.endswith("\n")]
        return [row["val_top1"] for row in rows]
    return []


def reached_by_summary(outputs: Path) -> list[float]:
    """Top-1 after each epoch, from timm's summary.csv."""
    for file in outputs.glob("*/summary.csv"):
        with file.open(newline="") as opened:
            return [float(row["eval_top1"]) / 100 for row in csv.DictReader(opened) if row.get("eval_top1")]
    return []


def measure(
    command_for: Callable[[Path, int], Sequence[str]],
    reached: Callable[[Path], list[float]],
    goal: float,
    seeds: Iterator[int],
) -> dict[str, float]:
    """Run until the goal is reached, or to the end."""
    with tempfile.TemporaryDirectory() as folder, Path(folder, "said").open("w") as said:
        outputs, started = Path(folder), time.perf_counter()
        process = subprocess.Popen(
            command_for(outputs, next(seeds)),
            cwd=folder,
            env=side_by_side.environment(),
            stdout=said,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            while process.poll() is None and max(reached(outputs), default=0) < goal:
                time.sleep(_POLL_SECONDS)
            seconds, found = time.perf_counter() - started, reached(outputs)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        if not found:
            raise side_by_side.BenchmarkError(Path(folder, "said").read_text()[-3000:])
        return {"seconds": seconds, "epochs": len(found), "best_top1": max(found), "missed": float(max(found) < goal)}


def sides_of(task: Task, timm_folder: Path, is_bf16: bool) -> dict[str, Side]:
    """The sides of one task, by the name of their recipe."""
    commands: dict[str, tuple[Callable[..., list[str]], Callable[[Path], list[float]]]] = {
        "runner": (partial(ours, task), reached_by_rows),
        "timm, its defaults": (partial(timm, task, timm_folder, is_bf16, has_our_recipe=False), reached_by_summary),
        "timm, our recipe": (partial(timm, task, timm_folder, is_bf16, has_our_recipe=True), reached_by_summary),
        "by hand, our recipe": (partial(by_hand, task), reached_by_rows),
    }
    sides = {}
    for name, (make, reached) in commands.items():

        def command_for(outputs: Path, seed: int, make: Callable[..., list[str]] = make) -> list[str]:
            return make(outputs=outputs, seed=seed)

        shown = side_by_side.shown(command_for(Path("OUTPUTS"), 1), task.data, Path("OUTPUTS"))
        sides[name] = Side(
            name=f"{task.name}, {name}",
            measure=partial(measure, command_for, reached, task.goal, itertools.count(1)),
            command=shown.replace(f"{timm_folder.parent}/", "").replace(f"{side_by_side.ROOT}/", ""),
        )
    return sides


def tasks(place: Path, signs: Path) -> list[Task]:
    """The digits, and the signs of the hand divided into train and val."""
    root = resolve_paths(runner.load_config(["data=digits"]).data).root
    assert root is not None
    ensure_digits(root)
    split = place / "signs"
    given = [f"input={signs}", f"output={split}", "fraction=0.8", "mode=copy"]
    side_by_side.timed([sys.executable, "-m", "runner", "dataset", "split", *given])
    return [
        Task("digits", 0.98, Path(root), 32, 5, 1e-3, 0.1, 1.0, flips=False),
        Task("from_scratch", 0.95, split, 64, 6, 1e-3, 0.0, 0.5, flips=True),
    ]


def main() -> None:
    """Run each task by each side and record the results."""
    parser = side_by_side.parser(__doc__)
    parser.add_argument("timm", type=Path)
    parser.add_argument("signs", type=Path)
    options = parser.parse_args()
    config = runner.load_config(["data=digits"]).trainer
    is_bf16 = choose_precision(config, choose_device(config)).name == "bf16"
    measured: dict[str, side_by_side.Measured] = {}
    ratios: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as folder:
        for task in tasks(Path(folder), options.signs.resolve()):
            sides = sides_of(task, options.timm.resolve(), is_bf16)
            found = side_by_side.compare(list(sides.values()), side_by_side.repeats_of(options))
            own = found[sides["runner"].name].median("seconds")
            for name, side in sides.items():
                if name != "runner":
                    ratios[f"{task.name}_to_{name}"] = own / found[side.name].median("seconds")
            measured |= found
    work = (
        "ResNet-18, from the command to the end of the epoch that reaches 98% of the digits' and 95% of the signs' "
        "validation images; a seed of its own for each turn; timm's defaults for at most "
        f"{MOST_EPOCHS_OF_DEFAULTS} epochs"
    )
    side_by_side.record("time_to_accuracy", measured, ratios, small=options.small, work=work)


if __name__ == "__main__":
    main()
