"""What the benchmarks share: sides measured in turns, medians with their spread, and what the machine was doing.

Each benchmark runs by itself, `python benchmarks/NAME.py [--small] [--repeats 3]`; `--small` tries it out in a size
that says nothing, and records nothing. Results are JSON in benchmarks/results/, from which `benchmarks/table.py` makes
docs/benchmarks.md.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shlex
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from joblib import cpu_count  # type: ignore[import-untyped]

from runner.run import installed

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results"
PEERS = ROOT / "benchmarks" / "peers"
"""What peers need of us, as a user of theirs would write it."""
CPU_FEATURES = ("avx2", "avx512f", "avx512_bf16", "amx_tile", "amx_bf16")
Figures = Mapping[str, float]
"""By name, the unit in the name."""


class BenchmarkError(Exception):
    """A command of a benchmark failed; its output is in the message."""


@dataclass(frozen=True, kw_only=True)
class Side:
    """One of the things that are compared."""

    name: str
    measure: Callable[[], Figures]
    """Runs it once, from start to end."""
    command: str
    """What is run, for the record."""


@dataclass(kw_only=True)
class Measured:
    """All runs of one side."""

    command: str
    runs: list[Figures] = field(default_factory=list)
    loads: list[float] = field(default_factory=list)
    """Load of the machine, over a minute, before each run."""

    def median(self, figure: str) -> float:
        """Median over all runs."""
        return statistics.median(run[figure] for run in self.runs)

    def to_json(self) -> dict[str, Any]:
        """Each figure with all its values, and the load before each run."""
        figures = {name: spread([run[name] for run in self.runs]) for name in self.runs[0]}
        return {"command": self.command, "figures": figures, "loads": self.loads}


def spread(values: Sequence[float]) -> dict[str, Any]:
    """Values with their median, lowest and highest."""
    return {"median": statistics.median(values), "lowest": min(values), "highest": max(values), "values": list(values)}


def turns(num_sides: int, repeats: int) -> Iterator[int]:
    """The order of the runs: A B B A A B …, so that a machine that gets slower or faster is fair to all."""
    for number in range(repeats):
        yield from range(num_sides) if number % 2 == 0 else reversed(range(num_sides))


def compare(sides: Sequence[Side], repeats: int) -> dict[str, Measured]:
    """Run all sides in turns, a line for each run."""
    measured = {side.name: Measured(command=side.command) for side in sides}
    for number in turns(len(sides), repeats):
        side = sides[number]
        measured[side.name].loads.append(round(os.getloadavg()[0], 2))
        figures = side.measure()
        measured[side.name].runs.append(figures)
        print(f"  {side.name}: " + ", ".join(f"{name} {value:,.4g}" for name, value in figures.items()), flush=True)
    return measured


def machine() -> dict[str, Any]:
    """What decides about speed here."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.is_file() else []
    facts = {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in lines)}
    flags = set(facts.get("flags", "").split())
    return {
        "processor": facts.get("model name") or platform.processor() or platform.machine(),
        "features": [feature for feature in CPU_FEATURES if feature in flags],
        "cores": int(cpu_count()),
        "versions": installed.versions(),
    }


def parser(description: str | None) -> argparse.ArgumentParser:
    """The arguments that each benchmark takes."""
    arguments = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--small", action="store_true", help="try it out; nothing is recorded")
    arguments.add_argument("--repeats", type=int, default=None, help="runs of each side (default 3, small: 1)")
    return arguments


def repeats_of(options: argparse.Namespace) -> int:
    """How often each side runs."""
    if options.repeats is not None:
        return int(options.repeats)
    return 1 if options.small else 3


def record(
    name: str,
    measured: Mapping[str, Measured],
    ratios: Mapping[str, float],
    *,
    small: bool,
    work: str,
    not_measured: Mapping[str, str] | None = None,
) -> None:
    """Print the outcome and write benchmarks/results/NAME.json, unless it was only tried out.

    Args:
        name: of the benchmark.
        measured: by side.
        ratios: what the goals are about, by the name of the goal.
        small: whether it was only tried out.
        work: what was run, in words.
        not_measured: sides that were left out, with the reason.
    """
    for side, reason in (not_measured or {}).items():
        print(f"  {side}: not measured: {reason}")
    print(f"{name}: " + ", ".join(f"{goal} {value:.3f}" for goal, value in ratios.items()), flush=True)
    if small:
        return
    result = {
        "work": work,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": machine(),
        "sides": {side: runs.to_json() for side, runs in measured.items()},
        "not_measured": dict(not_measured or {}),
        "ratios": dict(ratios),
    }
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / f"{name}.json").write_text(json.dumps(result, indent=2, ensure_ascii=False) + "\n")


def environment(threads: int | None = None) -> dict[str, str]:
    """The environment of a run: this checkout, and so many threads (by default as many as there are cores).

    Python keeps what it has compiled, as it does for users unless they tell it not to.
    """
    num_threads = int(cpu_count()) if threads is None else threads
    inherited = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return {**inherited, "PYTHONPATH": f"{ROOT}{os.pathsep}{PEERS}", "OMP_NUM_THREADS": str(num_threads)}


def timed(command: Sequence[str], *, cwd: Path = ROOT, threads: int | None = None) -> tuple[float, str]:
    """Seconds from a command to its exit, and its output.

    Raises:
        BenchmarkError: when it fails.
    """
    started = time.perf_counter()
    done = subprocess.run(
        command,
        cwd=cwd,
        env=environment(threads),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    seconds = time.perf_counter() - started
    if done.returncode:
        raise BenchmarkError(f"{shlex.join(command)} failed with {done.returncode}:\n{done.stdout[-3000:]}")
    return seconds, done.stdout


def figures_of(command: Sequence[str], *, threads: int | None = None) -> dict[str, float]:
    """The figures that a script of ours prints as JSON in its last line."""
    _, output = timed(command, threads=threads)
    figures: dict[str, float] = json.loads(output.splitlines()[-1])
    return figures


def script(name: str, *arguments: str) -> list[str]:
    """The command of one of the scripts here."""
    return [sys.executable, str(ROOT / "benchmarks" / name), *arguments]


def scripts(commands: Mapping[str, Sequence[str]], *hidden: Path, threads: int | None = None) -> list[Side]:
    """Sides that are scripts here, each with its arguments, which print their figures in the last line."""
    return [
        Side(
            name=name,
            measure=partial(figures_of, script(*command), threads=threads),
            command=shown(script(*command), *hidden),
        )
        for name, command in commands.items()
    ]


def shown(command: Sequence[str], *hidden: Path) -> str:
    """A command for the record, without the folders of this machine."""
    text = shlex.join(["python", *command[1:]])
    for number, folder in enumerate(hidden):
        text = text.replace(str(folder), "…" if number == 0 else f"…{number}")
    return text.replace(str(ROOT) + "/", "")
