"""Tests on a real SLURM and a real Open MPI; `make test-cluster` starts them."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import ROOT, SMALL_NET

# Three full batches for each of two processes: of fewer images the BatchNorm of the small net has too few.
PAIR = (*SMALL_NET, "data.num_train=48")
CPU_JOB = (*PAIR, "dist=slurm", "dist.slurm.gpus_per_node=0", "dist.slurm.cpus_per_task=1")


def why_not(*programs: str) -> str | None:
    """Why tests that need these programs can't be run here."""
    reason = os.environ.get("RUNNER_NO_CLUSTER")
    missing = [program for program in programs if shutil.which(program) is None]
    if reason is None and missing:
        reason = f"not installed: {', '.join(missing)}"
    if reason is None and "srun" in programs and "SLURM_CONF" not in os.environ:
        reason = "no SLURM runs here"
    return None if reason is None else f"{reason}; `make test-cluster` installs and starts what is needed"


def command_output(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout


def wait_for(what: str, is_true: Callable[[], bool], seconds: float = 120) -> None:
    deadline = time.monotonic() + seconds
    while not is_true():
        assert time.monotonic() < deadline, f"waited {seconds} seconds in vain: {what}"
        time.sleep(0.2)


@dataclass(frozen=True)
class Submitted:
    """A run that was submitted, as its user sees it."""

    job_id: str
    folder: Path
    told: str

    @property
    def record(self) -> dict[str, Any]:
        file = self.folder / "run.json"
        return json.loads(file.read_text()) if file.is_file() else {"status": "waiting", "attempts": 0}

    @property
    def epochs(self) -> list[int]:
        file = self.folder / "metrics.jsonl"
        return [json.loads(line)["epoch"] for line in file.read_text().splitlines()] if file.is_file() else []

    @property
    def log(self) -> str:
        return (self.folder / "logs" / "rank_0.log").read_text()

    def wait_for_status(self, status: str) -> None:
        wait_for(f"{self.folder} to be {status}; it is {self.record}", lambda: self.record["status"] == status)

    def wait_for_epoch(self, number: int) -> None:
        wait_for(f"epoch {number} of {self.folder}", lambda: len(self.epochs) >= number)


@pytest.fixture(autouse=True)
def _nothing_is_left(request: pytest.FixtureRequest) -> Iterator[None]:
    """Cancel what a test has left in the queue, so that the next one finds an idle cluster."""
    yield
    if why_not("srun") is None:
        command_output("scancel", "--user", "root")
        wait_for("an empty queue", lambda: not command_output("squeue", "--noheader"), seconds=60)


@pytest.fixture
def start(tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Type a command line that ends in what the runner is given."""

    def typed(before: tuple[str, ...], argv: list[str], *, is_well: bool = True) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [*before, sys.executable, "-m", "runner", *argv],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "120"},
            capture_output=True,
            text=True,
            check=False,
            timeout=200,
        )
        assert (done.returncode == 0) == is_well, done.stdout + done.stderr
        return done

    return typed


@pytest.fixture
def submit(start, tiny) -> Callable[..., Submitted]:
    """Submit a tiny training."""

    def submitted(*overrides: str) -> Submitted:
        told = start((), tiny(*CPU_JOB, *overrides)).stdout
        return parse(told)[0]

    return submitted


def parse(told: str) -> list[Submitted]:
    """The jobs that the runner says it has submitted."""
    jobs = re.findall(r"submitted +job (\d+)", told)
    folders = re.findall(r"run folder +(\S+)", told)
    return [Submitted(job, Path(folder), told) for job, folder in zip(jobs, folders, strict=True)]
