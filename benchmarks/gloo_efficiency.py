"""What the exchange of gradients costs: two ranks of one thread against two runs of one thread that know nothing of
each other, on the same two cores.

    python benchmarks/gloo_efficiency.py [--small] [--repeats 3]

Interleaved; medians of the images/s that the runs themselves record for their second epoch, when everything is warm.
The cost of the cores getting in each other's way is on both sides, so that the ratio is the exchange alone.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path

import side_by_side
import torch

ROOT = Path(__file__).parents[1]
NUM_STEPS = {16: 12, 64: 5}  # per epoch and process


def start(folder: Path, batch_size: int, num_procs: int, *, small: bool) -> subprocess.Popen[bytes]:
    num_steps = 2 if small else NUM_STEPS[batch_size]
    overrides = [
        "data=synthetic",
        f"data.batch_size={batch_size}",
        f"data.num_train={num_steps * batch_size * num_procs}",
        "data.num_val=16",
        f"data.image_size={32 if small else 224}",
        "data.workers=0",
        "trainer.epochs=2",
        "trainer.device=cpu",
        f"dist.procs_per_node={num_procs}",
        f"output_dir={folder}",
    ]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    return subprocess.Popen([sys.executable, "-m", "runner", *overrides], env=environment, stdout=subprocess.DEVNULL)


def images_per_second(batch_size: int, sizes: tuple[int, ...], *, small: bool) -> float:
    """Images/s of runs of these numbers of processes at the same time, together."""
    with tempfile.TemporaryDirectory() as name:
        folders = [Path(name) / str(number) for number in range(len(sizes))]
        runs = [start(folder, batch_size, size, small=small) for folder, size in zip(folders, sizes, strict=True)]
        if any(run.wait() for run in runs):
            raise SystemExit("a run failed")
        rows = [next(folder.glob("*/*/metrics.jsonl")).read_text().splitlines()[-1] for folder in folders]
        return float(sum(json.loads(row)["train_images_per_second"] for row in rows))


def main() -> None:
    options = side_by_side.parser(__doc__).parse_args()
    results = {}
    for batch_size in NUM_STEPS:
        measured: dict[str, list[float]] = {"two_ranks": [], "two_runs": []}
        for _ in range(side_by_side.repeats_of(options)):
            measured["two_runs"].append(images_per_second(batch_size, (1, 1), small=options.small))
            measured["two_ranks"].append(images_per_second(batch_size, (2,), small=options.small))
        medians = {name: statistics.median(values) for name, values in measured.items()}
        results[f"batch_{batch_size}"] = {
            "images_per_second": measured,
            "medians": medians,
            "efficiency": medians["two_ranks"] / medians["two_runs"],
        }
        print(f"batch {batch_size}: {medians}, efficiency {results[f'batch_{batch_size}']['efficiency']:.1%}")
    if options.small:
        return
    report = {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "torch": str(torch.__version__),
        "cores": os.cpu_count(),
        "model": "resnet18, 224 px, precision auto",
        "results": results,
    }
    file = ROOT / "benchmarks" / "results" / "gloo_efficiency.json"
    file.parent.mkdir(exist_ok=True)
    file.write_text(json.dumps(report, indent=2) + "\n")


if __name__ == "__main__":
    main()
