"""Whether memory grows from epoch to epoch: `python benchmarks/memory.py [--small] [--repeats 1]`.

A small model is trained on 20,000 small files with 4 loader processes. At the end of each epoch the proportional set
size (PSS, /proc/PID/smaps_rollup) of all processes of the run is added up. The run is of 21 epochs: at the end of its
last one the loader processes are gone. Two sides: the default, which keeps so small images decoded, and one that reads
the files in each epoch, as it is of larger sets. Goal for both: epoch 20 at most 1.01 times epoch 2. Linux only. No
other program that has loaded the same libraries may start or end meanwhile: their pages count for less in each of
several processes.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path

import side_by_side
from photographs import make_photographs
from side_by_side import BenchmarkError, Figures

SECONDS_BETWEEN_LOOKS = 0.05
DEFAULT, READING = "runner", "runner, files read in each epoch"
SIDES = {DEFAULT: (), READING: ("data.cache=none",)}


def family(pid: int) -> list[int]:
    """A process and all that descend from it."""
    children = Path(f"/proc/{pid}/task/{pid}/children")
    try:
        own = [int(child) for child in children.read_text().split()]
    except FileNotFoundError:  # it has just ended
        return []
    return [pid, *(descendant for child in own for descendant in family(child))]


def proportional_bytes(pid: int) -> int:
    """PSS of a process and all its descendants: shared pages count once over all of them."""
    total = 0
    for member in family(pid):
        try:
            lines = Path(f"/proc/{member}/smaps_rollup").read_text().splitlines()
        except (FileNotFoundError, ProcessLookupError):  # it has just ended
            continue
        total += sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:"))
    return total


def watch(command: list[str], outputs: Path) -> Figures:
    """PSS at the end of the second and of the last but one epoch of a run."""
    sizes: list[int] = []
    with subprocess.Popen(command, env=side_by_side.environment(), stdout=subprocess.DEVNULL) as process:
        while process.poll() is None:
            file = next(outputs.glob("*/*/metrics.jsonl"), None)
            if file is not None and file.read_text().count("\n") > len(sizes):
                sizes.append(proportional_bytes(process.pid))
            time.sleep(SECONDS_BETWEEN_LOOKS)
    if process.returncode or len(sizes) < 3:
        raise BenchmarkError(f"{command} ended with {process.returncode} after {len(sizes)} epochs")
    return {"epoch_2_bytes": sizes[1], "last_epoch_bytes": sizes[-2], "highest_bytes": max(sizes)}


def main() -> None:
    options = side_by_side.parser(__doc__).parse_args()
    num_files, epochs = (400, 4) if options.small else (20_000, 20)
    print(f"memory over {epochs} epochs of {num_files:,} files", flush=True)
    with tempfile.TemporaryDirectory() as name:
        folder = make_photographs(Path(name) / "data", num_train=num_files, num_val=100, width=40, height=40)
        sides: list[side_by_side.Side] = []
        for side, more in SIDES.items():
            outputs = Path(name) / f"outputs-{len(sides)}"
            command = [
                sys.executable, "-m", "runner", "model=torchvision", "model.name=shufflenet_v2_x0_5", "data=folder",
                f"data.root={folder}", "data.image_size=32", "data.batch_size=200", "data.workers=4",
                "optimizer.lr=0.01", f"trainer.epochs={epochs + 1}", "trainer.patience=null", f"output_dir={outputs}",
                *more,
            ]  # fmt: skip
            shown = side_by_side.shown(command, folder, outputs)
            sides.append(side_by_side.Side(name=side, measure=partial(watch, command, outputs), command=shown))
        measured = side_by_side.compare(sides, 1)
    growth = {side: runs.median("last_epoch_bytes") / runs.median("epoch_2_bytes") for side, runs in measured.items()}
    side_by_side.record(
        "memory",
        measured,
        {"last_epoch_to_epoch_2": growth[READING], "last_epoch_to_epoch_2_kept": growth[DEFAULT]},
        small=options.small,
        work=f"{num_files:,} small JPEGs, {epochs} epochs, 4 loader processes, ShuffleNet 0.5 at 32 px",
    )


if __name__ == "__main__":
    main()
