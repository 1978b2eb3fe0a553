"""The grey digits as one channel and as three: `python benchmarks/one_channel.py [--small] [--repeats 3]`.

Both sides are the default experiment on the same scans, and normalise each channel with the same mean and standard
deviation; one run of each side for each seed 1, 2, …. With one channel the first layer has a third of the weights, and
the images take a third of the bytes; all other layers are the same.
"""

from __future__ import annotations

import itertools
import json
import resource
import statistics
import sys
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import side_by_side

SIDES = {
    "1 channel": ("data.channels=1", "data.normalize.mean=[0.305]", "data.normalize.std=[0.376]"),
    "3 channels": (),
}


def train(overrides: tuple[str, ...], seeds: Iterator[int], *, small: bool) -> dict[str, float]:
    """Train with the next seed and read the run folder."""
    with tempfile.TemporaryDirectory() as outputs:
        command = [
            *(sys.executable, "-m", "runner", *overrides, f"seed={next(seeds)}", f"output_dir={outputs}"),
            *(["trainer.epochs=2", "schedule.warmup_epochs=0"] if small else []),
        ]
        cpu_before = _cpu_seconds()
        seconds, _ = side_by_side.timed(command, cwd=Path(outputs))
        cpu_seconds = _cpu_seconds() - cpu_before
        (record_file,) = Path(outputs).glob("*/*/run.json")
        best = json.loads(record_file.read_text())["best"]["value"]
        rows = [json.loads(line) for line in (record_file.parent / "metrics.jsonl").read_text().splitlines()]
    # The first epoch also decodes the images that are kept.
    rates = [row["train_images_per_second"] for row in rows[1:]]
    return {
        "images_per_second": statistics.median(rates),
        "best_top1": best,
        "last_top1": rows[-1]["val_top1"],
        "wall_seconds": seconds,
        "cpu_seconds": cpu_seconds,
    }


def _cpu_seconds() -> float:
    """Of all processes that were started and have ended; on a busy machine they vary less than the wall time."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def main() -> None:
    """Train all seeds on both sides and record the results."""
    options = side_by_side.parser(__doc__).parse_args()
    sides = [
        side_by_side.Side(
            name=name,
            measure=partial(train, overrides, itertools.count(1), small=options.small),
            command=" ".join(("python -m runner", *overrides, "seed=SEED")),
        )
        for name, overrides in SIDES.items()
    ]
    measured = side_by_side.compare(sides, side_by_side.repeats_of(options))
    one, three = (measured[name] for name in SIDES)
    side_by_side.record(
        "one_channel",
        measured,
        {
            "rate_to_three_channels": one.median("images_per_second") / three.median("images_per_second"),
            "cpu_seconds_to_three_channels": one.median("cpu_seconds") / three.median("cpu_seconds"),
            "top1_difference": one.median("best_top1") - three.median("best_top1"),
        },
        small=options.small,
        work="The default experiment on the digits, which are grey, with data.channels 1 and 3; one run per seed",
    )


if __name__ == "__main__":
    main()
