"""A grid of 12 trials that is killed again and again: `python benchmarks/sweep_kills.py [--small] [--kills 5]`.

One trial crashes (SIGSEGV), one runs out of memory (an allocation fails, under a limit of the address space), and the
sweep itself is killed by SIGKILL at random moments and typed again: some seconds after a number of trials has finished,
both drawn, so that the kills hit its midst on a slow machine too. After each start the folder is asked whether a
finished trial ran again; in the end, whether each trial stands on the leaderboard once, with the status it has to have.
`--small` kills once and records nothing; else benchmarks/results/sweep_kills.json.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import side_by_side
from few_digits import use_few_digits

NUM_TRIALS, CRASHES, NEEDS_MEMORY = 12, 3, 7
ADDRESS_SPACE_BYTES = 10 << 30
LONGEST_DELAY_SECONDS = 6.0
MOST_FINISHED = 9
SEED = 0
_SECONDS_BETWEEN_LOOKS = 0.1
MODELS = "sweep_kills_models"


def grid() -> list[str]:
    """Twelve trials, as keys that go together."""
    rates = [f"{0.002 * (number + 1):g}" for number in range(NUM_TRIALS)]
    models, sizes, batches = ["steady"] * NUM_TRIALS, ["32"] * NUM_TRIALS, ["20"] * NUM_TRIALS
    models[CRASHES] = "crashing"
    sizes[NEEDS_MEMORY], batches[NEEDS_MEMORY] = "1024", "200"  # its first layer alone writes 6.7 GB in bf16
    varied = {"optimizer.lr": rates, "model.name": models, "data.image_size": sizes, "data.batch_size": batches}
    return [
        *(f"{key}={','.join(values)}" for key, values in varied.items()),
        f"sweep.zip=[[{','.join(varied)}]]",
    ]


def install_models(site: Path) -> None:
    """Offer the models as an installed package does."""
    info = site / f"{MODELS}-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {MODELS}\nVersion: 1.0\n")
    names = "".join(f"{name} = {MODELS}:{name}\n" for name in ("steady", "crashing"))
    (info / "entry_points.txt").write_text(f"[runner.models]\n{names}")


def command_of(place: Path) -> list[str]:
    """What is typed each time."""
    return [
        *(sys.executable, "-m", "runner", "-m", "model=custom", *grid(), f"sweep.dir={place / 'sweep'}"),
        *("data.workers=0", "trainer.device=cpu", "trainer.epochs=2", "schedule.warmup_epochs=0"),
    ]


@dataclass(frozen=True, kw_only=True)
class Kill:
    """When a sweep is killed."""

    finished_trials: int
    """Once so many trials have finished,"""
    then_seconds: float
    """and so many seconds later."""


def moments(num_kills: int) -> list[Kill]:
    """The same in each run, in their order."""
    generator = random.Random(SEED)
    finished = sorted(generator.sample(range(MOST_FINISHED + 1), num_kills))
    return [
        Kill(finished_trials=number, then_seconds=round(generator.uniform(0, LONGEST_DELAY_SECONDS), 1))
        for number in finished
    ]


class KilledSweep:
    """A sweep that is started again and again in one folder."""

    def __init__(self, place: Path) -> None:
        self.folder = place / "sweep"
        self.log = place / "sweep.log"
        self.command = command_of(place)
        paths = (str(side_by_side.ROOT), str(side_by_side.ROOT / "benchmarks"), str(place / "site"))
        self.environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
        self.ran_again: set[str] = set()

    def start(self, kill: Kill | None) -> int:
        """Start it, and kill it if at all; returns its exit code."""
        before = self.finished()
        with self.log.open("ab") as log:
            process = subprocess.Popen(
                self.command,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=self.environment,
                preexec_fn=limit_memory,  # noqa: PLW1509 - this script has one thread
            )
        while kill is not None and process.poll() is None and len(self.finished()) < kill.finished_trials:
            time.sleep(_SECONDS_BETWEEN_LOOKS)
        try:
            exit_code = process.wait(None if kill is None else kill.then_seconds)
        except subprocess.TimeoutExpired:
            process.kill()
            exit_code = process.wait()
        after = self.finished()
        self.ran_again |= {name for name, record in before.items() if after.get(name) != record}
        return exit_code

    def finished(self) -> dict[str, Any]:
        """The records of the trials that are completed."""
        records = {file.parent.name: json.loads(file.read_text()) for file in self.folder.glob("*/run.json")}
        return {name: record for name, record in records.items() if record["status"] == "completed"}

    def rows(self) -> list[dict[str, Any]]:
        """The leaderboard."""
        rows: list[dict[str, Any]] = json.loads((self.folder / "leaderboard.json").read_text())
        return rows


def limit_memory() -> None:
    """In the sweep, from which the trials inherit it."""
    resource.setrlimit(resource.RLIMIT_AS, (ADDRESS_SPACE_BYTES, ADDRESS_SPACE_BYTES))


def carry_out(sweep: KilledSweep, num_kills: int) -> dict[str, Any]:
    """Kill, go on, and count."""
    kills = []
    for kill in moments(num_kills):
        is_killed = sweep.start(kill) == -signal.SIGKILL
        kills.append({**asdict(kill), "is_killed": is_killed, "finished_trials_then": len(sweep.finished())})
        print(f"  {kills[-1]}", flush=True)
    exit_code = sweep.start(None)
    rows = sorted(sweep.rows(), key=lambda row: int(row["folder"]))
    return {
        "command": side_by_side.shown(sweep.command, sweep.folder.parent),
        "address_space_bytes": ADDRESS_SPACE_BYTES,
        "kills": kills,
        "exit_code": exit_code,
        "trials_on_the_leaderboard": [int(row["folder"]) for row in rows],
        "status": {row["folder"]: row["status"] for row in rows},
        "errors": {row["folder"]: shortened(row["error"], sweep.folder) for row in rows if row["error"]},
        "attempts": {name: record["attempts"] for name, record in sorted(sweep.finished().items())},
        "finished_trials_that_ran_again": sorted(sweep.ran_again),
    }


def shortened(error: str, folder: Path) -> str:
    """The first line, without folders of this machine."""
    return error.splitlines()[0].replace(str(folder), "SWEEP")


def check(result: dict[str, Any]) -> None:
    """Raises an AssertionError where the sweep has lost or repeated anything."""
    crashed, starved = str(CRASHES), str(NEEDS_MEMORY)
    expected = {str(number): "completed" for number in range(NUM_TRIALS)} | {crashed: "failed", starved: "failed"}
    assert result["trials_on_the_leaderboard"] == list(range(NUM_TRIALS)), result
    assert result["status"] == expected, result
    assert "SIGSEGV" in result["errors"][crashed], result
    assert "memory" in result["errors"][starved], result
    assert result["finished_trials_that_ran_again"] == [], result
    assert all(kill["is_killed"] for kill in result["kills"]), result
    assert result["exit_code"] == 1, result


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--small", action="store_true", help="one kill; nothing is recorded")
    arguments.add_argument("--kills", type=int, default=5)
    options = arguments.parse_args()
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        use_few_digits(place / "cache", train_per_class=20, val_per_class=5)
        install_models(place / "site")
        sweep = KilledSweep(place)
        print(shlex.join(sweep.command), flush=True)
        try:
            result = carry_out(sweep, 1 if options.small else options.kills)
        finally:
            print(sweep.log.read_text()[-3000:])
    print(json.dumps(result, indent=2))
    check(result)
    if not options.small:
        side_by_side.RESULTS.mkdir(exist_ok=True)
        result = {"machine": side_by_side.machine(), **result}
        (side_by_side.RESULTS / "sweep_kills.json").write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
