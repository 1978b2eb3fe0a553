"""What tracker=mlflow costs the training beside it: `python benchmarks/tracker_overhead.py [--small] [--uri URI]`.

The same run with tracker=mlflow and with none, in turns: seconds per step and per epoch from metrics.jsonl. Epochs from
the second on are the goal's, at most 1%; in the first one the tracker's process starts, which the sum of all epochs
has too. Both sides must end with the same weights, or nothing is recorded, and so must the server have each epoch once.

By default a server of MLflow is started here, with SQLite, which then takes its share of the same cores: give the
address of one on another machine to leave it out. Its package comes with `pip install -e '.[dev]'`.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import side_by_side

from runner.base.files import sha256_of
from runner.run.tracking.mlflow_run import read_id

WORK = (
    *("model=resnet18", "data=synthetic", "data.image_size=64", "data.batch_size=32", "data.num_train=1600"),
    *("data.num_val=320", "trainer.epochs=6", "trainer.patience=null", "optimizer.lr=0.001"),
)
SMALL = ("model=torchvision", "model.name=shufflenet_v2_x0_5", "data.image_size=32", "data.batch_size=8",
         "data.num_train=64", "data.num_val=16", "trainer.epochs=2")  # fmt: skip
START_SECONDS = 90


@contextmanager
def mlflow_server(folder: Path) -> Iterator[str]:
    """A server with a database and artifacts in a folder; its address."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    typed = [sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(port), "--workers", "1"]
    typed += ["--backend-store-uri", f"sqlite:///{folder / 'mlflow.db'}", "--artifacts-destination", str(folder / "a")]
    environment = {**os.environ, "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}
    with (folder / "server.log").open("wb") as log:
        server = subprocess.Popen(typed, stdout=log, stderr=log, cwd=folder, env=environment, start_new_session=True)
    try:
        wait_for(f"http://127.0.0.1:{port}/health", server, folder / "server.log")
        yield f"http://127.0.0.1:{port}"
    finally:
        os.killpg(server.pid, signal.SIGKILL)
        server.wait()


def wait_for(address: str, server: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + START_SECONDS
    while True:
        try:
            with urllib.request.urlopen(address, timeout=5):
                return
        except (urllib.error.URLError, OSError) as error:
            if server.poll() is not None or time.monotonic() > deadline:
                raise side_by_side.BenchmarkError(f"MLflow does not start:\n{log.read_text()[-3000:]}") from error
            time.sleep(0.2)


def command(outputs: Path, *overrides: str, small: bool) -> list[str]:
    return [sys.executable, "-m", "runner", *WORK, *(SMALL if small else ()), f"output_dir={outputs}", *overrides]


def measure(typed: list[str], outputs: Path, digests: set[str], uri: str | None) -> dict[str, float]:
    """Figures of one run.

    Args:
        typed: its command.
        outputs: where its folder is made.
        digests: gets the SHA-256 of its weights.
        uri: where it was tracked, if it was.

    Raises:
        BenchmarkError: the run fails, or the server lacks an epoch or has one twice.
    """
    known = set(outputs.glob("*/*/run.json"))
    seconds, _ = side_by_side.timed(typed)
    (file,) = set(outputs.glob("*/*/run.json")) - known
    digests.add(sha256_of(file.parent / "model" / "model.safetensors"))
    rows = [json.loads(line) for line in (file.parent / "metrics.jsonl").read_text().splitlines()]
    if uri is not None:
        check_server(uri, file.parent, [row["step"] for row in rows])
    steps_per_epoch = rows[0]["step"]
    later = rows[1:]
    return {
        "step_seconds": statistics.median(row["train_seconds"] for row in later) / steps_per_epoch,
        "epoch_seconds": statistics.median(row["epoch_seconds"] for row in later),
        "all_epochs_seconds": sum(row["epoch_seconds"] for row in rows),
        "command_seconds": seconds,
    }


def check_server(uri: str, run_dir: Path, expected: list[int]) -> None:
    from mlflow import MlflowClient  # noqa: PLC0415 - takes seconds

    run_id = read_id(run_dir)
    if run_id is None:
        raise side_by_side.BenchmarkError(
            f"{run_dir} was never sent:\n{(run_dir / 'logs' / 'tracking.log').read_text()}"
        )
    sent = sorted(metric.step for metric in MlflowClient(tracking_uri=uri).get_metric_history(run_id, "epoch"))
    if sent != expected:
        raise side_by_side.BenchmarkError(f"the server has the epochs that end at steps {sent}, not {expected}")


def compare(uri: str, folder: Path, *, small: bool, repeats: int) -> None:
    digests: set[str] = set()
    tracker = ("tracker=mlflow", f"tracker.uri={uri}", "tracker.artifacts=none")
    outputs = folder / "outputs"
    plain, tracked = command(outputs, small=small), command(outputs, *tracker, small=small)
    sides = [
        side_by_side.Side(
            name=name,
            measure=partial(measure, typed, outputs, digests, address),
            command=side_by_side.shown(typed, folder),
        )
        for name, typed, address in (("mlflow", tracked, uri), ("none", plain, None))
    ]
    measured = side_by_side.compare(sides, repeats)
    if len(digests) != 1:
        raise side_by_side.BenchmarkError(f"tracked and untracked runs end with different weights: {sorted(digests)}")
    figures = ("step_seconds", "epoch_seconds", "all_epochs_seconds", "command_seconds")
    side_by_side.record(
        "tracker_overhead",
        measured,
        {name: measured["mlflow"].median(name) / measured["none"].median(name) for name in figures},
        small=small,
        work="ResNet-18, 64 px, batch 32, synthetic images, 6 epochs of 50 steps",
    )


def main() -> None:
    parser = side_by_side.parser(__doc__)
    parser.add_argument("--uri", help="a server of MLflow; by default one is started on this machine")
    options = parser.parse_args()
    print("what tracker=mlflow costs a training", flush=True)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        repeats = side_by_side.repeats_of(options)
        if options.uri is not None:
            compare(options.uri, folder, small=options.small, repeats=repeats)
        else:
            with mlflow_server(folder) as uri:
                compare(uri, folder, small=options.small, repeats=repeats)


if __name__ == "__main__":
    main()
