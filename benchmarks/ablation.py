"""What each technique does to accuracy and time on few digits: `python benchmarks/ablation.py [--small] [--repeats 3]`.

The default recipe trains for 20 epochs on 30 scans of each digit and is evaluated on all validation scans; each other
side changes one thing in it. Each turn has a seed of its own, the same for all sides. Rates of other optimizers are
those that were best of three on another seed.
"""

from __future__ import annotations

import itertools
import json
import statistics
import sys
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import side_by_side
from few_digits import use_few_digits

TRAIN_PER_CLASS, ALL = 30, 1000
NUM_EPOCHS = 20
RECIPE = ("data=digits", "trainer.patience=null")
BASE = "default recipe"


def augmented(entry: str) -> tuple[str, ...]:
    """The training transforms of the digits with one more."""
    return (f"data.train_transforms=[{{name: resize, size: 32}}, {{{entry}}}]",)


SIDES = {
    BASE: (),
    "label smoothing 0.1": ("trainer.label_smoothing=0.1",),
    "mixup 0.2": ("trainer.mixup_alpha=0.2",),
    "cutmix 1": ("trainer.cutmix_alpha=1",),
    "moving average 0.98": ("trainer.ema_decay=0.98",),
    "binary cross-entropy": ("trainer.loss=binary_cross_entropy",),
    "binary cross-entropy, threshold 0.2, mixup 0.1, cutmix 1": (
        "trainer.loss=binary_cross_entropy",
        "trainer.target_threshold=0.2",
        "trainer.mixup_alpha=0.1",
        "trainer.cutmix_alpha=1",
    ),
    "RandAugment 6": augmented("name: rand_augment, magnitude: 6"),
    "TrivialAugment": augmented("name: trivial_augment"),
    "rotations to 10 degrees": augmented("name: random_rotation, degrees: 10"),
    "random erasing": augmented("name: random_erasing"),
    "cosine decay": ("schedule=cosine",),
    "adamw": ("optimizer=adamw", "optimizer.lr=0.001"),
    "lars": ("optimizer=lars", "optimizer.lr=5"),
    "lamb": ("optimizer=lamb", "optimizer.lr=0.01"),
    "muon": ("optimizer=muon", "optimizer.lr=0.003"),
}


def train(overrides: tuple[str, ...], seeds: Iterator[int], *, num_epochs: int) -> dict[str, float]:
    """Train with the next seed."""
    length = (f"trainer.epochs={num_epochs}", f"seed={next(seeds)}")
    with tempfile.TemporaryDirectory() as outputs:
        command = [sys.executable, "-m", "runner", *RECIPE, *length, f"output_dir={outputs}", *overrides]
        side_by_side.timed(command, cwd=Path(outputs))
        (file,) = Path(outputs).glob("*/*/metrics.jsonl")
        rows = [json.loads(row) for row in file.read_text().splitlines()]
    return {"last_top1": rows[-1]["val_top1"], "epoch_seconds": statistics.median(row["epoch_seconds"] for row in rows)}


def main() -> None:
    """Train all seeds on all sides and record the results."""
    arguments = side_by_side.parser(__doc__)
    arguments.add_argument("--only", nargs="*", help="overrides of one more side, for a look; nothing is recorded")
    options = arguments.parse_args()
    num_epochs = 1 if options.small else NUM_EPOCHS
    with tempfile.TemporaryDirectory() as cache:
        use_few_digits(Path(cache), train_per_class=TRAIN_PER_CLASS, val_per_class=ALL)
        chosen = SIDES if options.only is None else {"this": tuple(options.only)}
        sides = [
            side_by_side.Side(
                name=name,
                measure=partial(train, overrides, itertools.count(1), num_epochs=num_epochs),
                command=" ".join(
                    ("python -m runner", *RECIPE, f"trainer.epochs={NUM_EPOCHS}", "seed=SEED", *overrides)
                ),
            )
            for name, overrides in chosen.items()
        ]
        measured = side_by_side.compare(sides, side_by_side.repeats_of(options))
    if options.only is not None:
        return
    gains = {
        name: statistics.mean(
            run["last_top1"] - base["last_top1"] for run, base in zip(runs.runs, of_base, strict=True)
        )
        for name, runs in measured.items()
        if (of_base := measured[BASE].runs) and name != BASE
    }
    work = f"ResNet-18, {NUM_EPOCHS} epochs on {TRAIN_PER_CLASS} scans of each digit; gain in top-1 to the same seed's"
    side_by_side.record("ablation", measured, gains, small=options.small, work=work)


if __name__ == "__main__":
    main()
