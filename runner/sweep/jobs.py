"""Asks SLURM which jobs of a sweep it still has, so that none is submitted twice."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Collection, Iterable
from pathlib import Path

from runner.errors import LaunchError
from runner.sweep.folder import SweepFolder, Trial

JOB_FILE = Path("logs", "trial.job.json")
_SECONDS_TO_ANSWER = 60


def adopt(folder: SweepFolder, trials: Iterable[Trial]) -> None:
    """Take up the jobs that were submitted just before the sweep was killed, and so are not in its records."""
    for trial in trials:
        file = folder.run_dir(trial) / JOB_FILE
        if trial.job_id is None and file.is_file():
            trial.job_id = json.loads(file.read_text(encoding="utf-8"))["job_id"]
            folder.save(trial)


def queued(job_ids: Collection[str]) -> set[str]:
    """Those of these jobs that wait or run.

    Raises:
        LaunchError: when SLURM can't be asked.
    """
    if not job_ids:
        return set()
    try:
        done = subprocess.run(
            ["squeue", "--noheader", "--format=%A"],
            capture_output=True,
            text=True,
            check=True,
            timeout=_SECONDS_TO_ANSWER,
        )
    except (OSError, subprocess.SubprocessError) as error:
        said = getattr(error, "stderr", None) or str(error)
        raise LaunchError(
            f"trials of this sweep were submitted as SLURM's jobs, but squeue does not say which of them are left: "
            f"{said.strip()}; go on from a login node of the cluster"
        ) from error
    return set(done.stdout.split()) & set(job_ids)
