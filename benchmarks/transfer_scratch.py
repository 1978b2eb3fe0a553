"""The experiment `transfer` without its weights: `python benchmarks/transfer_scratch.py PHOTOS [--repeats 3]`.

PHOTOS are the ants and bees of the PyTorch tutorial: train/<class>/… and val/<class>/…. The experiment starts from
pretrained weights, which takes a download; here all layers learn from random weights, one run for each seed 1, 2, ….
So this measures that the recipe runs, how long it takes and what the photos alone give, and not what it is made for.
"""

from __future__ import annotations

import itertools
import json
import sys
import tempfile
from collections import Counter
from pathlib import Path

import side_by_side

OVERRIDES = ("experiment=transfer", "model.weights=null", "trainer.freeze_backbone_epochs=0")


def train(photos: Path, seed: int, *, small: bool) -> dict[str, float]:
    """Train with one seed and read the run folder."""
    with tempfile.TemporaryDirectory() as outputs:
        command = [
            *(sys.executable, "-m", "runner", *OVERRIDES, f"data.root={photos}", f"seed={seed}"),
            *(f"output_dir={outputs}", *(["trainer.epochs=1"] if small else [])),
        ]
        seconds, _ = side_by_side.timed(command, cwd=Path(outputs))
        (record_file,) = Path(outputs).glob("*/*/run.json")
        best = json.loads(record_file.read_text())["best"]["value"]
        rows = [json.loads(line) for line in (record_file.parent / "metrics.jsonl").read_text().splitlines()]
    return {"best_top1": best, "last_top1": rows[-1]["val_top1"], "wall_seconds": seconds}


def largest_share(photos: Path) -> float:
    """Top-1 of a model that always guesses the class with the most validation images."""
    counts = Counter(file.parent.name for file in (photos / "val").glob("*/[!.]*.jpg"))
    return max(counts.values()) / counts.total()


def main() -> None:
    """Train all seeds and record the results."""
    parser = side_by_side.parser(__doc__)
    parser.add_argument("photos", type=Path)
    options = parser.parse_args()
    photos = options.photos.resolve()
    seeds = itertools.count(1)
    side = side_by_side.Side(
        name="from random weights",
        measure=lambda: train(photos, next(seeds), small=options.small),
        command=f"python -m runner {' '.join(OVERRIDES)} data.root=PHOTOS seed=SEED",
    )
    measured = side_by_side.compare([side], side_by_side.repeats_of(options))
    side_by_side.record(
        "transfer_scratch",
        measured,
        {"largest_class": largest_share(photos)},
        small=options.small,
        work="The experiment transfer on the ants and bees of the PyTorch tutorial, but from random weights: "
        f"ResNet-18, 224 px, batch 4, 25 epochs, one run per seed; the larger class is {largest_share(photos):.1%}",
        not_measured={"from IMAGENET1K_V1, as the experiment says": "the weights have to be downloaded"},
    )


if __name__ == "__main__":
    main()
