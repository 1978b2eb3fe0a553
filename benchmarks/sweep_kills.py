"""A grid of 12 trials that is killed again and again: `python benchmarks/sweep_kills.py [num_kills] [override …]`.

One trial diverges, one runs out of memory (a real failure to allocate, under a limit of the address space), and the
sweep is killed by SIGKILL at random moments. Each time the folder is asked: did a finished trial run again? In the end:
does each trial stand on the leaderboard once? Recorded in benchmarks/results/sweep_kills.json.
"""

from __future__ import annotations

import json
import os
import random
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results" / "sweep_kills.json"
_ADDRESS_SPACE_BYTES = 16 << 30
_NUM_TRIALS, _DIVERGES, _NEEDS_MEMORY = 12, 3, 7
_LONGEST_LIFE_SECONDS = 40.0


def grid() -> list[str]:
    """Twelve trials, as keys that go together."""
    rates = [f"{0.002 * (number + 1):g}" for number in range(_NUM_TRIALS)]
    batches, sizes = ["16"] * _NUM_TRIALS, ["32"] * _NUM_TRIALS
    rates[_DIVERGES] = "1e20"
    batches[_NEEDS_MEMORY], sizes[_NEEDS_MEMORY] = "256", "1024"
    return [
        f"optimizer.lr={','.join(rates)}",
        f"data.batch_size={','.join(batches)}",
        f"data.image_size={','.join(sizes)}",
        "sweep.zip=[[optimizer.lr,data.batch_size,data.image_size]]",
    ]


def limit_memory() -> None:
    """In the sweep, from which the trials inherit it."""
    resource.setrlimit(resource.RLIMIT_AS, (_ADDRESS_SPACE_BYTES, _ADDRESS_SPACE_BYTES))


def finished(folder: Path) -> dict[str, Any]:
    """The records of the trials that are completed."""
    records = {file.parent.name: json.loads(file.read_text()) for file in folder.glob("*/run.json")}
    return {name: record for name, record in records.items() if record["status"] == "completed"}


def start(command: list[str], log: Path) -> subprocess.Popen[bytes]:
    with log.open("ab") as file:
        return subprocess.Popen(command, stdout=file, stderr=subprocess.STDOUT, preexec_fn=limit_memory)  # noqa: PLW1509


def main() -> None:
    """Kill, go on, and count."""
    num_kills = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    generator = random.Random(0)
    with tempfile.TemporaryDirectory() as outputs:
        folder, log = Path(outputs) / "sweep", Path(outputs) / "sweep.log"
        command = [
            sys.executable,
            "-m",
            "runner",
            "-m",
            *grid(),
            f"sweep.dir={folder}",
            "data.workers=0",
            *sys.argv[2:],
        ]
        repeated: set[str] = set()
        lives = []
        for _ in range(num_kills):
            before = finished(folder)
            process = start(command, log)
            lives.append(generator.uniform(5, _LONGEST_LIFE_SECONDS))
            time.sleep(lives[-1])
            process.kill()
            process.wait()
            after = finished(folder)
            repeated |= {name for name, record in before.items() if after.get(name) != record}
        before, started = finished(folder), time.perf_counter()
        exit_code = start(command, log).wait()
        repeated |= {name for name, record in before.items() if finished(folder).get(name) != record}
        rows = json.loads((folder / "leaderboard.json").read_text())
        print(log.read_text()[-3000:])
        result = {
            "command": " ".join(command[1:]),
            "cores": os.cpu_count(),
            "seconds_until_each_kill": [round(life, 1) for life in lives],
            "seconds_of_the_last_start": round(time.perf_counter() - started, 1),
            "exit_code": exit_code,
            "trials_on_the_leaderboard": sorted(int(row["folder"]) for row in rows),
            "status": {row["folder"]: row["status"] for row in rows},
            "errors": {row["folder"]: row["error"] for row in rows if row["error"]},
            "attempts": {name: record["attempts"] for name, record in finished(folder).items()},
            "finished_trials_that_ran_again": sorted(repeated),
        }
    assert result["trials_on_the_leaderboard"] == list(range(_NUM_TRIALS)), result
    assert not repeated, result
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps(result, indent=2) + "\n")
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
