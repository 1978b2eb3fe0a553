"""The runner's training loop against the shortest one over the same parts, and what lies outside of its steps.

    python benchmarks/overhead.py [--work resnet18_64] [--small] [--repeats 3]

Goals: at least 98% of the bare loop, which saves nothing; at most 2% of 10 epochs outside of steps and evaluation,
start-up apart; evaluation at least 2.5 times as fast as training. Without a goal: training and the checkpoints after
each epoch, which the runner writes in the background, of a bare loop that stops for a torch.save.
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path

import side_by_side
from photographs import make_photographs


@dataclass(frozen=True, kw_only=True)
class Work:
    """What is trained."""

    model: str
    image_size: int
    batch_size: int
    num_train: int
    """Photographs per epoch; 0 takes synthetic images."""
    num_val: int
    epochs: int


WORKS = {
    "resnet18_64": Work(model="resnet18", image_size=64, batch_size=32, num_train=1600, num_val=320, epochs=10),
    "resnet50_224": Work(model="resnet50", image_size=224, batch_size=16, num_train=0, num_val=32, epochs=3),
    "densenet121_224": Work(model="densenet121", image_size=224, batch_size=16, num_train=0, num_val=32, epochs=3),
}
SYNTHETIC_STEPS = 12


def overrides(work: Work, folder: Path, *, small: bool) -> list[str]:
    epochs = 2 if small else work.epochs
    common = [
        f"model={work.model}",
        f"data.image_size={32 if small else work.image_size}",
        f"data.batch_size={work.batch_size}",
        f"trainer.epochs={epochs}",
        "trainer.patience=null",
        "optimizer.lr=0.001",
    ]
    if not work.num_train:
        num_train = SYNTHETIC_STEPS * work.batch_size
        return [*common, "data=synthetic", f"data.num_train={num_train}", f"data.num_val={work.num_val}"]
    num_train, num_val = (64, 32) if small else (work.num_train, work.num_val)
    make_photographs(folder, num_train=num_train, num_val=num_val, width=80, height=80)
    return [*common, "data=folder", f"data.root={folder}"]


def main() -> None:
    parser = side_by_side.parser(__doc__)
    parser.add_argument("--work", choices=WORKS, default="resnet18_64")
    options = parser.parse_args()
    work = WORKS[options.work]
    print(f"overhead of the runner's loop: {options.work}", flush=True)
    with tempfile.TemporaryDirectory() as name:
        typed = overrides(work, Path(name), small=options.small)
        commands = {side: ["loop.py", side, *typed] for side in ("runner", "bare", "saving")}
        sides = side_by_side.scripts(commands, Path(name))
        measured = side_by_side.compare(sides, side_by_side.repeats_of(options))
    ours = measured["runner"]
    rate = ours.median("images_per_second")
    side_by_side.record(
        f"overhead_{options.work}",
        measured,
        {
            "of_bare_loop": rate / measured["bare"].median("images_per_second"),
            "of_saving_loop": ours.median("images_per_second_and_saving")
            / measured["saving"].median("images_per_second"),
            "outside_fraction": ours.median("outside_fraction"),
            "evaluation_to_training": ours.median("evaluation_images_per_second") / rate,
        },
        small=options.small,
        work=f"{work.model}, {work.image_size} px, batch {work.batch_size}, "
        + ("small JPEGs" if work.num_train else "synthetic images"),
    )


if __name__ == "__main__":
    main()
