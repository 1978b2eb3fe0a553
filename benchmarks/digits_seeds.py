"""Accuracy of the default run over several seeds: `python benchmarks/digits_seeds.py [num_seeds]`.

Trains the default experiment once per seed, in processes of their own, and records top-1 of the last and of the best
epoch, their mean and spread, and the seconds of training in benchmarks/results/digits_seeds.json.
"""

from __future__ import annotations

import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

RESULTS = Path(__file__).parent / "results" / "digits_seeds.json"


def train(seed: int, outputs: Path) -> dict[str, float]:
    """Train with one seed and read the run folder."""
    command = [sys.executable, "-m", "runner", f"seed={seed}", f"output_dir={outputs}/{seed}"]
    subprocess.run(command, check=True, capture_output=True)
    (record_file,) = outputs.glob(f"{seed}/*/*/run.json")
    record = json.loads(record_file.read_text())
    rows = [json.loads(line) for line in (record_file.parent / "metrics.jsonl").read_text().splitlines()]
    return {
        "seed": seed,
        "best_top1": record["best"]["value"],
        "last_top1": rows[-1]["val_top1"],
        "epochs_seconds": sum(row["epoch_seconds"] for row in rows),
    }


def main() -> None:
    """Train all seeds and record the results."""
    num_seeds = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as folder:
        runs = [train(seed, Path(folder)) for seed in range(1, num_seeds + 1)]
    summary = {
        f"{kind}_top1": {
            "mean": statistics.mean(run[f"{kind}_top1"] for run in runs),
            "standard_deviation": statistics.stdev(run[f"{kind}_top1"] for run in runs),
            "lowest": min(run[f"{kind}_top1"] for run in runs),
        }
        for kind in ("best", "last")
    }
    result = {
        "command": "python -m runner seed=SEED",
        "machine": {"processor": platform.processor() or platform.machine(), "cores": os.cpu_count(), "load": load},
        "runs": runs,
        **summary,
        "median_epochs_seconds": statistics.median(run["epochs_seconds"] for run in runs),
    }
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps(result, indent=2) + "\n")
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
