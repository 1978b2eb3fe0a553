"""Searches compared: `python benchmarks/sweep_search.py pruning|samplers|overhead [--small] [--repeats 3]`.

pruning   TPE with the median policy against the same without: 30 trials, 2 at once, 2 processes each
samplers  random search against TPE with 3 seeds each, on the same budget of trials and epochs
overhead  seconds that a trial takes in a sweep over the same run alone, taken in turns

Each trial trains a small network on 240 of the digits for a few epochs; in the space most learning rates are bad.
`--small` tries it out and records nothing; else benchmarks/results/sweep_MODE.json.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import side_by_side
from few_digits import use_few_digits

from runner.base.errors import EXIT_DONE, TrialsFailedError

SPACE = (
    "optimizer.lr=tag(log,interval(1e-5,1))",
    "optimizer.momentum=interval(0.5,0.99)",
    "optimizer.weight_decay=tag(log,interval(1e-6,1e-1))",
    "data.batch_size=8,16,32",
)
TRAINING = (
    *("model=torchvision", "model.name=shufflenet_v2_x0_5", "data.workers=0", "trainer.device=cpu"),
    *("trainer.patience=null", "schedule.warmup_epochs=1", "trainer.precision=fp32"),
)
NUM_TRIALS, SEEDS, TRIALS_OF_A_SEED, TRIALS_OF_AN_OVERHEAD = 30, (1, 2, 3), 20, 4
STARTUP_TRIALS = 4
LONG, SHORT = "trainer.epochs=6", "trainer.epochs=3"


def command(*overrides: str) -> list[str]:
    return [sys.executable, "-m", "runner", *overrides]


def seconds_of(typed: Sequence[str]) -> float:
    """Seconds that a search takes, of which trials may fail: a learning rate of 1 may lead to an infinite loss.

    Raises:
        BenchmarkError: when it fails in any other way.
    """
    environment, started = side_by_side.environment(threads=1), time.perf_counter()
    done = subprocess.run(typed, cwd=side_by_side.ROOT, env=environment, capture_output=True, text=True, check=False)
    if done.returncode not in (EXIT_DONE, TrialsFailedError.exit_code):
        raise side_by_side.BenchmarkError(f"it ended with {done.returncode}:\n{done.stderr[-3000:]}")
    return time.perf_counter() - started


def search(folder: Path, num_trials: int, *overrides: str) -> dict[str, Any]:
    """Carry out a search and read its leaderboard."""
    typed = command("-m", *SPACE, *TRAINING, f"sweep.num_trials={num_trials}", f"sweep.dir={folder}", *overrides)
    seconds = seconds_of(typed)
    rows = json.loads((folder / "leaderboard.json").read_text())
    found = {
        "command": side_by_side.shown(typed, folder.parent),
        "seconds": round(seconds, 1),
        "status": dict(Counter(row["status"] for row in rows)),
        "epochs": sum(row["epochs"] for row in rows),
        "best": max(row["val_top1"] for row in rows if row["val_top1"] is not None),
    }
    print(f"  {folder.name}: {found['status']}, {found['epochs']} epochs, best {found['best']:.4f}", flush=True)
    return found


def pruning(outputs: Path, *, small: bool, repeats: int) -> dict[str, Any]:
    """The search with the policy, and without; its proposals depend on what it learns, so that they differ."""
    num_trials = 6 if small else NUM_TRIALS
    both = (LONG, "hydra/sweeper=tpe", "sweep.parallel=2", "dist.procs_per_node=2")
    startup = f"sweep.pruning.startup_trials={1 if small else STARTUP_TRIALS}"
    policy = ("sweep.pruner=median", startup, "sweep.pruning.delay_evaluation=2")
    with_policy = search(outputs / "median", num_trials, *both, *policy)
    without = search(outputs / "none", num_trials, *both)
    return {"searches": {"median policy": with_policy, "no policy": without}}


def samplers(outputs: Path, *, small: bool, repeats: int) -> dict[str, Any]:
    """Each sampler with each seed, on the same number of trials."""
    seeds: Sequence[int] = SEEDS[:1] if small else SEEDS
    num_trials = 3 if small else TRIALS_OF_A_SEED
    return {
        "searches": {
            f"{sampler}, seed {seed}": search(
                outputs / f"{sampler}{seed}",
                num_trials,
                *(SHORT, f"hydra/sweeper={sampler}", f"sweep.seed={seed}", "sweep.parallel=2"),
            )
            for seed in seeds
            for sampler in ("random", "tpe")
        }
    }


def overhead(outputs: Path, *, small: bool, repeats: int) -> dict[str, Any]:
    """A sweep of a few runs, one after the other, and one of these runs alone, in turns."""
    num_trials = 2 if small else TRIALS_OF_AN_OVERHEAD
    folders = iter(range(1000))

    def alone() -> side_by_side.Figures:
        return {"seconds": side_by_side.timed(command(*TRAINING, LONG, f"output_dir={outputs}"))[0]}

    def swept() -> side_by_side.Figures:
        seeds = ",".join(str(seed + 1) for seed in range(num_trials))
        folder = f"sweep.dir={outputs}/{next(folders)}"
        seconds, _ = side_by_side.timed(command("-m", f"seed={seeds}", *TRAINING, LONG, "sweep.parallel=1", folder))
        return {"seconds": seconds / num_trials}

    sides = [
        side_by_side.Side(name="a run alone", measure=alone, command=side_by_side.shown(command(*TRAINING, LONG))),
        side_by_side.Side(
            name="a trial of a sweep",
            measure=swept,
            command=side_by_side.shown(command("-m", "seed=…", *TRAINING, LONG, "sweep.parallel=1")),
        ),
    ]
    measured = side_by_side.compare(sides, repeats)
    more = measured["a trial of a sweep"].median("seconds") - measured["a run alone"].median("seconds")
    return {
        "sides": {name: runs.to_json() for name, runs in measured.items()},
        "not_measured": {},
        "ratios": {"overhead_seconds": more},
    }


MODES = {"pruning": pruning, "samplers": samplers, "overhead": overhead}


def main() -> None:
    arguments = side_by_side.parser(__doc__)
    arguments.add_argument("mode", choices=MODES)
    options = arguments.parse_args()
    result: dict[str, Any] = {
        "work": (__doc__ or "").split(f"\n{options.mode} ", 1)[1].split("\n", 1)[0].strip(),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": side_by_side.machine(),
        "load": round(os.getloadavg()[0], 2),
    }
    with tempfile.TemporaryDirectory() as name:
        use_few_digits(Path(name) / "cache", train_per_class=24, val_per_class=10)
        repeats = side_by_side.repeats_of(options)
        result |= MODES[options.mode](Path(name), small=options.small, repeats=repeats)
    print(json.dumps(result, indent=2, ensure_ascii=False))
    if not options.small:
        side_by_side.RESULTS.mkdir(exist_ok=True)
        path = side_by_side.RESULTS / f"sweep_{options.mode}.json"
        path.write_text(json.dumps(result, indent=2, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
