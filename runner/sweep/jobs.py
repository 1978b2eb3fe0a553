"""Asks SLURM which jobs of a sweep it still has, so that none is submitted twice."""

from __future__ import annotations

import subprocess
from collections.abc import Collection

from runner.errors import LaunchError

_SECONDS_TO_ANSWER = 60


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
