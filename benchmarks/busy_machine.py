"""Training beside other work: `python benchmarks/busy_machine.py [--small] [--repeats 5]`.

Images/s of a whole `python -m runner` on an idle machine, and beside as many busy loops as it has cores: by the
runner's own choice, and with waiting threads that spin, as torch has them. Half of the idle rate would be a
fair share of the busy machine.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import side_by_side
from joblib import cpu_count  # type: ignore[import-untyped]
from side_by_side import ROOT

# The run that `python -m runner` is without a word, and one on larger images.
WORKS = {
    "digits": ("", 60),
    "ResNet-18 64 px": (
        "data=synthetic data.num_train=8000 data.num_val=32 model=resnet18 model.stem=small data.image_size=64 "
        "data.batch_size=32",
        12,
    ),
}
# What the environment says: our choice where it says nothing; 300,000 is libgomp's own count of spins.
POLICIES = {"chosen": {}, "spinning": {"GOMP_SPINCOUNT": "300000"}}
MACHINES = ("idle", "busy")


@contextmanager
def busy_loops(number: int) -> Iterator[None]:
    loops = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(number)]
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


def measured_here(work: str, policy: str, machine: str, *, small: bool) -> dict[str, float]:
    """The figures of one side: a run of the runner as a user starts it."""
    overrides, num_steps = WORKS[work]
    os.environ.pop("OMP_NUM_THREADS", None)  # users seldom set it
    os.environ.update(POLICIES[policy])
    with tempfile.TemporaryDirectory() as name, busy_loops(int(cpu_count()) if machine == "busy" else 0):
        command = [sys.executable, "-m", "runner", *overrides.split(), "trainer.device=cpu"]
        command += [f"trainer.max_steps={3 if small else num_steps}"]
        subprocess.run([*command, f"output_dir={name}"], cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
        rows = next(Path(name).rglob("metrics.jsonl")).read_text(encoding="utf-8").splitlines()
    return {"images_per_second": float(json.loads(rows[-1])["train_images_per_second"])}


def main() -> None:
    parser = side_by_side.parser(__doc__)
    parser.add_argument("--side", nargs=3, metavar=("WORK", "POLICY", "MACHINE"), help="measure this side here and now")
    options = parser.parse_args()
    if options.side:
        print(json.dumps(measured_here(*options.side, small=options.small)))
        return
    print("training beside other work", flush=True)
    small = ["--small"] if options.small else []
    commands = {
        f"{work}, {policy}, {machine}": ["busy_machine.py", "--side", work, policy, machine, *small]
        for work in WORKS
        for policy in POLICIES
        for machine in MACHINES
    }
    measured = side_by_side.compare(side_by_side.scripts(commands), side_by_side.repeats_of(options))
    rates = {side: [run["images_per_second"] for run in runs.runs] for side, runs in measured.items()}
    idle = {work: statistics.median(rates[f"{work}, spinning, idle"]) for work in WORKS}
    shares = {
        f"{work}, {policy}: lowest share of the fair share": min(rates[f"{work}, {policy}, busy"]) / (idle[work] / 2)
        for work in WORKS
        for policy in POLICIES
    }
    kept = {f"{work}: idle, chosen": statistics.median(rates[f"{work}, chosen, idle"]) / idle[work] for work in WORKS}
    side_by_side.record(
        "busy_machine",
        measured,
        {**shares, **kept},
        small=options.small,
        work="runs on random images, alone and beside as many busy loops as there are cores",
    )


if __name__ == "__main__":
    main()
