"""Decoding in the training process: `python benchmarks/decode_threads.py [--small] [--repeats 3]`.

A training on the CPU without loader processes, as the runner chooses it for two cores: JPEG photographs of 500 × 375 px
to crops of 64, decoded by one thread and by as many as compute. Compared are the milliseconds per image for which the
loop waits for data.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import side_by_side
from photographs import make_photographs

SIDES = ("one thread", "all threads")
NUM_TRAIN, EPOCHS = 960, 4


def measured_here(side: str, folder: Path, epochs: int) -> dict[str, float]:
    """The figures of one side, in this process; the first epoch does not count."""
    import loop  # noqa: PLC0415 - by the sides alone

    from runner.data.loader import prepare  # noqa: PLC0415

    if side == "one thread":
        prepare._MOST_THREADS = 1
    overrides = [
        *("model=resnet18", "data=folder", f"data.root={folder}", "data.image_size=64", "data.batch_size=32"),
        *("data.workers=0", f"trainer.epochs={epochs}", "trainer.patience=null", "trainer.device=cpu"),
        *("optimizer.lr=0.01", "data.cache=none"),
    ]
    return loop.measured_here("runner", overrides)


def main() -> None:
    parser = side_by_side.parser(__doc__)
    parser.add_argument("--side", choices=SIDES, help="measure this side here and now")
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--epochs", type=int)
    options = parser.parse_args()
    if options.side:
        print(json.dumps(measured_here(options.side, options.folder, options.epochs)))
        return
    print("decoding in the training process", flush=True)
    num_train, epochs = (64, 2) if options.small else (NUM_TRAIN, EPOCHS)
    with tempfile.TemporaryDirectory() as name:
        folder = make_photographs(Path(name), num_train=num_train, num_val=32, width=500, height=375)
        arguments = ["--folder", str(folder), "--epochs", str(epochs)]
        commands = {side: ["decode_threads.py", "--side", side, *arguments] for side in SIDES}
        measured = side_by_side.compare(side_by_side.scripts(commands, folder), side_by_side.repeats_of(options))
    waits = {side: runs.median("data_wait_ms") for side, runs in measured.items()}
    side_by_side.record(
        "decode_threads",
        measured,
        {"wait_to_one_thread": waits["all threads"] / waits["one thread"]},
        small=options.small,
        work=f"ResNet-18, JPEGs of 500×375 px to crops of 64, batch 32, {epochs} epochs, no loader processes",
    )


if __name__ == "__main__":
    main()
