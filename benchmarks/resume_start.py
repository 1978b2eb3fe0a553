"""Time from `resume` to its first step, beside that of a new run: `python benchmarks/resume_start.py [repeats]`.

Both are whole processes of the default experiment (ResNet-18 on digits), from their start to the line that reports
their first step; taken in turns. The run that is resumed was left in the middle of an epoch; each time a fresh copy of
it. Records medians in benchmarks/results/resume_start.json.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
RESULTS = Path(__file__).parent / "results" / "resume_start.json"
STEPS_BEFORE = 20  # of 45 in an epoch
SHORT = ("trainer.print_every=1", "trainer.device=cpu")


def main() -> None:
    """Measure and record."""
    repeats = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        left = leave_in_mid_epoch(folder)
        cold, resumed = [], []
        for number in range(repeats):
            copy = Path(shutil.copytree(left, folder / f"copy_{number}"))
            cold.append(seconds_to_first_step(*SHORT, f"output_dir={folder}/cold"))
            resumed.append(seconds_to_first_step("resume", f"run={copy}", "trainer.max_steps=null"))
    result = {
        "load": os.getloadavg()[0],
        "cores": os.cpu_count(),
        "repeats": repeats,
        "median_seconds_cold": statistics.median(cold),
        "median_seconds_resumed": statistics.median(resumed),
        "resumed_to_cold": statistics.median(after / new for after, new in zip(resumed, cold, strict=True)),
    }
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps(result, indent=2) + "\n")
    print(json.dumps(result, indent=2))


def command(*argv: str) -> list[str]:
    return [sys.executable, "-m", "runner", *argv]


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"}


def leave_in_mid_epoch(folder: Path) -> Path:
    """A run folder whose newest checkpoint is in the middle of the first epoch."""
    overrides = (*SHORT, f"trainer.max_steps={STEPS_BEFORE}", f"output_dir={folder}/left")
    subprocess.run(command(*overrides), env=environment(), check=True, capture_output=True)
    (record,) = (folder / "left").glob("*/*/run.json")
    return record.parent


def seconds_to_first_step(*argv: str) -> float:
    """Start a run, wait for the report of its first step, end it."""
    started = time.perf_counter()
    with subprocess.Popen(
        command(*argv), env=environment(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        assert process.stdout is not None
        said = []
        for line in process.stdout:
            said.append(line)
            if "  step " in line:
                seconds = time.perf_counter() - started
                process.kill()
                return seconds
    raise RuntimeError(f"it ended before its first step:\n{''.join(said)}")


if __name__ == "__main__":
    main()
