"""Searches compared: `python benchmarks/sweep_search.py pruning|samplers|overhead [override …]`.

pruning   TPE with the median policy, 2 trials of 2 processes at once, against the same without a policy
samplers  random search against TPE, 3 seeds each, on the same budget
overhead  seconds that a trial takes in a sweep over the same run alone

`sweep.num_trials=5 trainer.epochs=2` and the like make it smaller. Recorded in benchmarks/results/sweep_MODE.json.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"
SPACE = ("optimizer.lr=tag(log,interval(1e-4,1))", "optimizer=sgd,adamw", "data.batch_size=16,32,64")
_NUM_REPEATS = 3


def run(*overrides: str) -> float:
    """Seconds that a command takes."""
    started = time.perf_counter()
    subprocess.run([sys.executable, "-m", "runner", *overrides], check=True, capture_output=True)
    return time.perf_counter() - started


def search(folder: Path, *overrides: str) -> dict[str, Any]:
    """Carry out a search and read its leaderboard."""
    seconds = run("-m", *SPACE, "sweep.num_trials=30", f"sweep.dir={folder}", *overrides, *sys.argv[2:])
    rows = json.loads((folder / "leaderboard.json").read_text())
    return {
        "seconds": round(seconds, 1),
        "status": dict(Counter(row["status"] for row in rows)),
        "epochs": sum(row["epochs"] for row in rows),
        "best": max(row["val_top1"] for row in rows if row["val_top1"] is not None),
    }


def pruning(outputs: Path) -> dict[str, Any]:
    both = ("hydra/sweeper=tpe", "sweep.parallel=2", "dist.procs_per_node=2", "trainer.device=cpu")
    return {
        "median": search(outputs / "median", *both, "sweep.pruner=median"),
        "none": search(outputs / "none", *both),
    }


def samplers(outputs: Path) -> dict[str, Any]:
    return {
        sampler: [
            search(outputs / f"{sampler}{seed}", f"hydra/sweeper={sampler}", f"sweep.seed={seed}", "sweep.parallel=1")
            for seed in (1, 2, 3)
        ]
        for sampler in ("random", "tpe")
    }


def overhead(outputs: Path) -> dict[str, Any]:
    alone, swept = [], []
    for repeat in range(_NUM_REPEATS):
        alone.append(run(f"output_dir={outputs}", *sys.argv[2:]))
        folder = f"sweep.dir={outputs}/{repeat}"
        seconds = run("-m", "seed=1,2,3,4", folder, "sweep.parallel=1", f"output_dir={outputs}", *sys.argv[2:])
        swept.append(seconds / 4)
    return {
        "alone_seconds": alone,
        "trial_seconds": swept,
        "overhead_seconds": statistics.median(swept) - statistics.median(alone),
    }


def main() -> None:
    """Compare, and record."""
    mode = sys.argv[1]
    with tempfile.TemporaryDirectory() as outputs:
        found = {"pruning": pruning, "samplers": samplers, "overhead": overhead}[mode](Path(outputs))
    result = {"overrides": sys.argv[2:], "cores": os.cpu_count(), "load": os.getloadavg()[0], **found}
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / f"sweep_{mode}.json").write_text(json.dumps(result, indent=2) + "\n")
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
