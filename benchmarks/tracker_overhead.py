"""Training with a tracker against training without one, for a real MLflow server on this machine.

    python benchmarks/tracker_overhead.py [--small] [--repeats 5]

Goal: at most 1 % more time for an epoch, and so for a step. The server shares the cores with the training, which on a
team's own server it does not; its start and its end are outside of what is measured. The first epoch, in which the
follower starts, is reported apart.
"""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from statistics import median

import side_by_side

_START_SECONDS = 120


@contextmanager
def mlflow_server(folder: Path) -> Iterator[str]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "mlflow", "server", "--port", str(port), "--workers", "1"]
    command += ["--backend-store-uri", f"sqlite:///{folder / 'mlflow.db'}"]
    command += ["--artifacts-destination", str(folder / "artifacts")]
    with (folder / "server.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, cwd=folder, start_new_session=True)
    try:
        deadline = time.monotonic() + _START_SECONDS
        while not _answers(f"http://127.0.0.1:{port}/health"):
            if time.monotonic() > deadline:
                raise SystemExit(f"MLflow's server did not start: {folder / 'server.log'}")
            time.sleep(0.5)
        yield f"http://127.0.0.1:{port}"
    finally:
        subprocess.run(["pkill", "-KILL", "-s", str(process.pid)], check=False)
        process.wait()


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=5):
            return True
    except (urllib.error.URLError, OSError):
        return False


def measure(folder: Path, overrides: Sequence[str]) -> dict[str, float]:
    output = Path(tempfile.mkdtemp(dir=folder))
    command = [sys.executable, "-m", "runner", *overrides, f"output_dir={output}"]
    wall_seconds, _ = side_by_side.timed(command)
    (file,) = output.glob("*/*/metrics.jsonl")
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    num_steps = rows[-1]["step"] // len(rows)
    later = rows[1:]
    return {
        "seconds per epoch": median(row["epoch_seconds"] for row in later),
        "milliseconds per step": median(1000 * row["train_seconds"] / num_steps for row in later),
        "seconds of the first epoch": rows[0]["epoch_seconds"],
        "wall seconds": wall_seconds,
    }


def main() -> None:
    options = side_by_side.parser(__doc__).parse_args()
    epochs = 3 if options.small else 10
    plain = [f"trainer.epochs={epochs}", "trainer.print_every=10"]
    with tempfile.TemporaryDirectory() as place, mlflow_server(Path(place)) as uri:
        tracked = [*plain, "tracker=mlflow", f"tracker.uri={uri}", "tracker.wait_seconds=120"]
        sides = [
            side_by_side.Side(
                name=name,
                command=f"python -m runner {' '.join(plain)} tracker={name}",
                measure=partial(measure, Path(place), typed),
            )
            for name, typed in (("none", plain), ("mlflow", tracked))
        ]
        measured = side_by_side.compare(sides, side_by_side.repeats_of(options))
    without, with_tracker = measured["none"], measured["mlflow"]
    ratios = {
        f"{name}, of none": with_tracker.median(name) / without.median(name)
        for name in ("seconds per epoch", "milliseconds per step", "wall seconds")
    }
    work = f"ResNet-18 on digits, {epochs} epochs, a point every 10 steps; goal: at most 1.01"
    side_by_side.record("tracker_overhead", measured, ratios, small=options.small, work=work)


if __name__ == "__main__":
    main()
