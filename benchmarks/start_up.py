"""What a user waits for before anything happens: `python benchmarks/start_up.py [--small] [--repeats 3]`.

`--help`, the refusal of a config, and the first step of the default run against that of a plain script over the same
images. Goals: 0.6 seconds, 0.6 seconds, 1.2 times the script.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import side_by_side
from side_by_side import BenchmarkError, Side

import runner
from runner.launch.preflight import preflight


def seconds_to_line(command: Sequence[str], start: str) -> Mapping[str, float]:
    """Seconds from a command to the line of its output that begins so; the command is ended there."""
    started = time.perf_counter()
    with subprocess.Popen(
        command, env={**side_by_side.environment(), "PYTHONUNBUFFERED": "1"}, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith(start):
                seconds = time.perf_counter() - started
                process.kill()
                return {"seconds": seconds}
    raise BenchmarkError(f"{command} ended without a line that begins with {start!r}")


def seconds_to_exit(arguments: list[str], exit_code: int) -> Mapping[str, float]:
    """Seconds that `python -m runner` takes to end with this code."""
    command = [sys.executable, "-m", "runner", *arguments]
    started = time.perf_counter()
    done = subprocess.run(command, env=side_by_side.environment(), capture_output=True, check=False)
    seconds = time.perf_counter() - started
    if done.returncode != exit_code:
        raise BenchmarkError(f"{command} ended with {done.returncode}, not {exit_code}: {done.stderr.decode()}")
    return {"seconds": seconds}


def main() -> None:
    options = side_by_side.parser(__doc__).parse_args()
    print("start-up", flush=True)
    ready = preflight(runner.load_config())  # writes the digits, and brings the files into memory
    root = ready.config.data.train
    assert root is not None, "the preflight fills it"
    with tempfile.TemporaryDirectory() as folder:
        default = [sys.executable, "-m", "runner", "trainer.print_every=1", f"output_dir={folder}"]
        plain = side_by_side.script("first_step.py", root)
        hidden = (Path(folder), Path(root), Path.home())
        sides = [
            Side(name="runner", measure=lambda: seconds_to_line(default, "epoch 1/"),
                 command=side_by_side.shown(default, *hidden)),
            Side(name="bare", measure=lambda: seconds_to_line(plain, "step 1"),
                 command=side_by_side.shown(plain, *hidden)),
            Side(name="--help", measure=lambda: seconds_to_exit(["--help"], 0), command="python -m runner --help"),
            Side(name="config error", measure=lambda: seconds_to_exit(["trainer.epchos=5"], 2),
                 command="python -m runner trainer.epchos=5"),
        ]  # fmt: skip
        measured = side_by_side.compare(sides, side_by_side.repeats_of(options))
    seconds = {name: runs.median("seconds") for name, runs in measured.items()}
    side_by_side.record(
        "start_up",
        measured,
        {
            "first_step_to_bare_loop": seconds["runner"] / seconds["bare"],
            "help_seconds": seconds["--help"],
            "config_error_seconds": seconds["config error"],
        },
        small=options.small,
        work="the default run: ResNet-18 on digits",
    )


if __name__ == "__main__":
    main()
