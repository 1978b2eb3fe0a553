"""What the exchange of gradients costs: two ranks of one thread against two runs of one thread that know nothing of
each other, on the same two cores.

    python benchmarks/gloo_efficiency.py [--small] [--repeats 3]

Interleaved; medians of the images/s that the runs themselves record for their second epoch, when everything is warm.
The cost of the cores getting in each other's way is on both sides, so that the ratio is the exchange alone.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path

import side_by_side
from side_by_side import Side

NUM_STEPS = {16: 12, 64: 5}  # per epoch and process
SIDES = {"two ranks": (2,), "two runs": (1, 1)}


def command(batch_size: int, num_procs: int, folder: str, *, small: bool) -> list[str]:
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
    return [sys.executable, "-m", "runner", *overrides]


def images_per_second(batch_size: int, sizes: tuple[int, ...], *, small: bool) -> side_by_side.Figures:
    """Images/s of runs of these numbers of processes at the same time, together."""
    with tempfile.TemporaryDirectory() as name:
        folders = [Path(name) / str(number) for number in range(len(sizes))]
        runs = [
            subprocess.Popen(
                command(batch_size, size, str(folder), small=small),
                env=side_by_side.environment(threads=1),
                stdout=subprocess.DEVNULL,
            )
            for folder, size in zip(folders, sizes, strict=True)
        ]
        if any([run.wait() for run in runs]):
            raise side_by_side.BenchmarkError(f"one of {len(runs)} runs with batch size {batch_size} failed")
        rows = [next(folder.glob("*/*/metrics.jsonl")).read_text().splitlines()[-1] for folder in folders]
        return {"images_per_second": sum(json.loads(row)["train_images_per_second"] for row in rows)}


def main() -> None:
    options = side_by_side.parser(__doc__).parse_args()
    small = options.small
    print("what the exchange of gradients costs", flush=True)
    sides = [
        Side(
            name=f"{name}, batch {batch_size}",
            measure=partial(images_per_second, batch_size, sizes, small=small),
            command=side_by_side.shown(command(batch_size, sizes[0], "…", small=small)),
        )
        for batch_size in NUM_STEPS
        for name, sizes in SIDES.items()
    ]
    measured = side_by_side.compare(sides, side_by_side.repeats_of(options))
    rates = {name: runs.median("images_per_second") for name, runs in measured.items()}
    side_by_side.record(
        "gloo_efficiency",
        measured,
        {f"batch_{size}": rates[f"two ranks, batch {size}"] / rates[f"two runs, batch {size}"] for size in NUM_STEPS},
        small=small,
        work="ResNet-18, 224 px, one thread per process",
    )


if __name__ == "__main__":
    main()
