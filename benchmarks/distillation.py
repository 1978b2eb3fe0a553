"""A student with a teacher and without, at equal budget: `python benchmarks/distillation.py [--small] [--repeats 3]`.

The teacher is a ResNet-18 that has trained on the same 30 scans of each digit, once per seed. The student of the
experiment distill trains for 20 epochs on them, with labels alone and with the teacher.
"""

from __future__ import annotations

import itertools
import json
import sys
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import side_by_side
from few_digits import use_few_digits

TRAIN_PER_CLASS, ALL = 30, 1000
STUDENT = ("experiment=distill",)
SIDES = {"labels alone": ("distill.run=null",), "with the teacher": ("distill.run=TEACHER",)}


def train(place: Path, overrides: tuple[str, ...], seeds: Iterator[int], *, epochs: int) -> dict[str, float]:
    """Train a student with the next seed; its teacher first, where no side has trained it yet."""
    seed = next(seeds)
    teacher = place / f"teacher-{seed}"
    if not teacher.exists():
        _run(teacher, (f"trainer.epochs={epochs}", "trainer.patience=null", f"seed={seed}"))
    (run,) = teacher.glob("*/*")
    with tempfile.TemporaryDirectory(dir=place) as outputs:
        given = tuple(item.replace("TEACHER", str(run)) for item in overrides)
        student = _run(Path(outputs), (*STUDENT, *given, f"trainer.epochs={epochs}", f"seed={seed}"))
        return {"last_top1": _last_top1(student), "teacher_top1": _last_top1(run)}


def _run(outputs: Path, overrides: tuple[str, ...]) -> Path:
    outputs.mkdir(exist_ok=True)
    side_by_side.timed([sys.executable, "-m", "runner", f"output_dir={outputs}", *overrides], cwd=outputs)
    (record,) = outputs.glob("*/*/run.json")
    return record.parent


def _last_top1(run: Path) -> float:
    value: float = json.loads((run / "metrics.jsonl").read_text().splitlines()[-1])["val_top1"]
    return value


def main() -> None:
    """Train all seeds on both sides and record the results."""
    options = side_by_side.parser(__doc__).parse_args()
    epochs = 1 if options.small else 20
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory() as cache:
        use_few_digits(Path(cache), train_per_class=TRAIN_PER_CLASS, val_per_class=ALL)
        sides = [
            side_by_side.Side(
                name=name,
                measure=partial(train, Path(folder), overrides, itertools.count(1), epochs=epochs),
                command=" ".join(("python -m runner", *STUDENT, *overrides, f"trainer.epochs={epochs}", "seed=SEED")),
            )
            for name, overrides in SIDES.items()
        ]
        measured = side_by_side.compare(sides, side_by_side.repeats_of(options))
    alone, taught = (measured[name].median("last_top1") for name in SIDES)
    work = f"ShuffleNet, {epochs} epochs on {TRAIN_PER_CLASS} scans of each digit; one run of each side per seed"
    side_by_side.record(
        "distillation", measured, {"gain_by_the_teacher": taught - alone}, small=options.small, work=work
    )


if __name__ == "__main__":
    main()
