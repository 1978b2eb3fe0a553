"""What each technique does to accuracy and time, on few images of two kinds.

    python benchmarks/ablation.py PHOTOS_FOLDER [--photos-only NAME] [--small] [--repeats 3]

The recorded PHOTOS_FOLDER is the folder `Dataset` of a clone of https://github.com/ardamavi/Sign-Language-Digits-Dataset,
see time_to_accuracy.py. The recipes `digits` and `from_scratch` train for 12 epochs on 30 images of each of ten classes
and are evaluated on the whole validation split; each other side changes one thing in them. Each turn has a seed of its
own, the same for all sides. The accuracy is that of the last epoch. With `--photos-only`, the digits are left out, and
the result is named `ablation_NAME` and has no times; a folder that holds `train` and `val` already is taken as it is.
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
NUM_EPOCHS = 12
BASE = "as it ships"
CROP = 'name: random_resized_crop, size: "${data.image_size}", scale: [0.5, 1]'
FLIP = "name: random_horizontal_flip"


def of_digits(*entries: str) -> str:
    """The training transforms of the digits with more of them."""
    return _listed('name: resize, size: "${data.image_size}"', *entries)


def of_photos(*entries: str) -> str:
    """The training transforms of the recipe from_scratch with more of them."""
    return _listed(CROP, FLIP, *entries)


def _listed(*entries: str) -> str:
    return "data.train_transforms=[" + ", ".join(f"{{{entry}}}" for entry in entries) + "]"


SIDES = {
    "digits": {
        BASE: (),
        "cosine decay": ("schedule=cosine", "~schedule.points", "schedule.warmup_epochs=1"),
        "no smoothing": ("trainer.label_smoothing=0",),
        "mixup 0.2": ("trainer.mixup_alpha=0.2",),
        "cutmix 1": ("trainer.cutmix_alpha=1",),
        "sgd, rate 0.02": ("optimizer=sgd", "optimizer.lr=0.02"),
        "rotations to 10 degrees": (of_digits("name: random_rotation, degrees: 10"),),
        "random erasing": (of_digits("name: random_erasing"),),
    },
    "from_scratch": {
        BASE: (),
        "cosine decay": ("schedule=cosine", "~schedule.points", "schedule.warmup_epochs=1"),
        "smoothing 0.1": ("trainer.label_smoothing=0.1",),
        "cutmix 1": ("trainer.cutmix_alpha=1",),
        "sgd, rate 0.05": ("optimizer=sgd", "optimizer.lr=0.05"),
        "no flips": (_listed(CROP),),
        "TrivialAugment": (of_photos("name: trivial_augment"),),
        "repeated 3 times": ("data.repeats=3",),
        "growing images, 40, 48, 64 px": (
            "data.progressive_resizing=[{epochs: 4, image_size: 40}, {epochs: 4, image_size: 48}]",
        ),
        "blurred strides": ("model.blur_pool=true",),
        "averaged flips": ("model.average_flips=true",),
    },
}


def train(given: tuple[str, ...], seeds: Iterator[int], *, num_epochs: int, is_timed: bool) -> dict[str, float]:
    """Train with the next seed."""
    length = (f"trainer.epochs={num_epochs}", f"seed={next(seeds)}")
    with tempfile.TemporaryDirectory() as outputs:
        command = [sys.executable, "-m", "runner", *given, *length, f"output_dir={outputs}"]
        side_by_side.timed(command, cwd=Path(outputs))
        (file,) = Path(outputs).glob("*/*/metrics.jsonl")
        rows = [json.loads(row) for row in file.read_text().splitlines()]
    found = {"last_top1": rows[-1]["val_top1"]}
    return found | {"epoch_seconds": statistics.median(row["epoch_seconds"] for row in rows)} if is_timed else found


def few_photos(place: Path, photos: Path) -> Path:
    """The photographs, divided into train and val, with the first 30 of each class in train."""
    if (photos / "train").is_dir():
        return photos
    split = place / "photos"
    given = [f"input={photos}", f"output={split}", "fraction=0.8", "mode=copy"]
    side_by_side.timed([sys.executable, "-m", "runner", "dataset", "split", *given])
    for folder in (split / "train").iterdir():
        for file in sorted(folder.iterdir())[TRAIN_PER_CLASS:]:
            file.unlink()
    return split


def main() -> None:
    """Train all seeds on all sides and record the results."""
    parser = side_by_side.parser(__doc__)
    parser.add_argument("photos", type=Path)
    parser.add_argument("--photos-only", metavar="NAME")
    options = parser.parse_args()
    num_epochs = 2 if options.small else NUM_EPOCHS
    measured: dict[str, side_by_side.Measured] = {}
    gains: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as cache, tempfile.TemporaryDirectory() as place:
        use_few_digits(Path(cache), train_per_class=TRAIN_PER_CLASS, val_per_class=ALL)
        roots = {"digits": [], "from_scratch": [f"data.root={few_photos(Path(place), options.photos.resolve())}"]}
        for recipe in ["from_scratch"] if options.photos_only else list(SIDES):
            sides = SIDES[recipe]
            given = (f"experiment={recipe}", *roots[recipe])
            found = side_by_side.compare(
                [
                    side_by_side.Side(
                        name=f"{recipe}: {name}",
                        measure=partial(
                            train,
                            (*given, *overrides),
                            itertools.count(1),
                            num_epochs=num_epochs,
                            is_timed=options.photos_only is None,
                        ),
                        command=" ".join(
                            ("python -m runner", given[0], f"trainer.epochs={NUM_EPOCHS}", "seed=SEED", *overrides)
                        ),
                    )
                    for name, overrides in sides.items()
                ],
                side_by_side.repeats_of(options),
            )
            base = found.pop(f"{recipe}: {BASE}")
            for name, runs in found.items():
                pairs = zip(runs.runs, base.runs, strict=True)
                gains[name] = statistics.mean(run["last_top1"] - of_base["last_top1"] for run, of_base in pairs)
            measured |= {f"{recipe}: {BASE}": base, **found}
    work = (
        f"ResNet-18, {NUM_EPOCHS} epochs on {TRAIN_PER_CLASS} images of each class; goal: mean gain over the same seeds"
    )
    if options.photos_only:
        work = f"ResNet-18, {NUM_EPOCHS} epochs on {options.photos_only}; goal: mean gain over the same seeds"
    name = f"ablation_{options.photos_only}" if options.photos_only else "ablation"
    side_by_side.record(name, measured, gains, small=options.small, work=work)


if __name__ == "__main__":
    main()
