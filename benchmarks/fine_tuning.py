"""Fine-tuning against training from scratch, on few images: `python benchmarks/fine_tuning.py [--small]`.

A ResNet-18 is trained on the digits 0 to 4, once per seed. Then three sides train on 10 scans of each of the digits 5
to 9, with equal budget: from random weights, from those of the other digits, and from these with optimizer.layer_decay.
"""

from __future__ import annotations

import itertools
import json
import shutil
import sys
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import side_by_side

from runner.data.sources.digits import ensure_digits
from runner.data.sources.paths import resolve_paths
from runner.library import load_config

TRAIN_PER_CLASS = 10
# Grey scans of 8 × 8 px as data=digits shows them.
DIGITS = (
    "data=folder",
    *("data.image_size=32", "data.channels=1", "data.normalize.mean=[0.305]", "data.normalize.std=[0.376]"),
    "data.resize=squash",
    "data.train_transforms=[{name: resize, size: 32}]",
    "data.eval_transforms=[{name: resize, size: 32}]",
    "model.stem=small",
)
SIDES = {
    "from scratch": (),
    "fine-tuned": ("model.weights=WEIGHTS",),
    "fine-tuned, layer decay 0.7": ("model.weights=WEIGHTS", "optimizer.layer_decay=0.7"),
}


def split_digits(place: Path) -> None:
    """Write place/first (digits 0 to 4) and place/second (5 to 9 with few training scans)."""
    root = resolve_paths(load_config(["data=digits"]).data).root
    assert root is not None
    ensure_digits(root)
    for split in ("train", "val"):
        for folder in sorted(Path(root, split).iterdir()):
            is_first = int(folder.name) < 5
            files = sorted(folder.iterdir())
            kept = files if is_first or split == "val" else files[:TRAIN_PER_CLASS]
            target = place / ("first" if is_first else "second") / split / folder.name
            target.mkdir(parents=True)
            for file in kept:
                shutil.copy(file, target)


def train(place: Path, overrides: tuple[str, ...], seeds: Iterator[int], *, epochs: int) -> dict[str, float]:
    """Train on the second half of the digits with the next seed; from weights of the first half where asked for."""
    seed = next(seeds)
    weights = place / f"weights-{seed}.safetensors"
    if not weights.exists():
        run = _run(place, "first", (), seed, epochs)
        shutil.copy(run / "model" / "model.safetensors", weights)
    given = tuple(item.replace("WEIGHTS", str(weights)) for item in overrides)
    rows = (_run(place, "second", given, seed, epochs) / "metrics.jsonl").read_text().splitlines()
    reached = [json.loads(row)["val_top1"] for row in rows]
    return {"best_top1": max(reached), "last_top1": reached[-1]}


def _run(place: Path, data: str, overrides: tuple[str, ...], seed: int, epochs: int) -> Path:
    with_epochs = (f"trainer.epochs={epochs}", "trainer.patience=null", f"seed={seed}")
    outputs = Path(tempfile.mkdtemp(dir=place))
    own = (*DIGITS, f"data.root={place / data}", *with_epochs, f"output_dir={outputs}", *overrides)
    side_by_side.timed([sys.executable, "-m", "runner", *own], cwd=place)
    (record,) = outputs.glob("*/*/run.json")
    return record.parent


def main() -> None:
    """Train all seeds on all sides and record the results."""
    options = side_by_side.parser(__doc__).parse_args()
    with tempfile.TemporaryDirectory() as folder:
        split_digits(Path(folder))
        sides = [
            side_by_side.Side(
                name=name,
                measure=partial(train, Path(folder), overrides, itertools.count(1), epochs=2 if options.small else 10),
                command=" ".join(("python -m runner", *DIGITS, "seed=SEED", *overrides)),
            )
            for name, overrides in SIDES.items()
        ]
        measured = side_by_side.compare(sides, side_by_side.repeats_of(options))
    scratch, tuned, decayed = (measured[name].median("best_top1") for name in SIDES)
    side_by_side.record(
        "fine_tuning",
        measured,
        {"gain_over_scratch": tuned - scratch, "gain_by_layer_decay": decayed - tuned},
        small=options.small,
        work="ResNet-18, 10 epochs on 10 scans of each of the digits 5 to 9; one run of each side per seed",
    )


if __name__ == "__main__":
    main()
