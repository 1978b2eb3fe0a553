"""Asks SLURM which jobs of a sweep it still has, so that none is submitted twice."""

from __future__ import annotations

import subprocess
from collections.abc import Collection, Iterable
from contextlib import suppress
from pathlib import Path

from runner.base.errors import LaunchError
from runner.run.contents import Job, read_object
from runner.run.run_folder import submitted_jobs
from runner.tools.sweep.folder import SweepFolder, Trial

JOB_FILE = Path("logs", "trial.job.json")
_SECONDS_TO_ANSWER = 60


def adopt(folder: SweepFolder, trials: Iterable[Trial]) -> None:
    """Take up the jobs that were submitted just before the sweep was killed, and so are not in its records."""
    for trial in trials:
        newest = max(_jobs_of(trial, folder.run_dir(trial)), key=int, default=None)
        if newest != trial.job_id:
            trial.job_id = newest
            folder.save(trial)


def _jobs_of(trial: Trial, run_dir: Path) -> set[str]:
    jobs = submitted_jobs(run_dir)
    if trial.job_id is not None:
        jobs.add(trial.job_id)
    with suppress(FileNotFoundError):  # it was not submitted
        jobs.add(read_object(run_dir / JOB_FILE, Job)["job_id"])
    return jobs


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
