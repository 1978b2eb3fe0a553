"""`python -m runner [train] [overrides]`: train one experiment, or each job of a multirun."""

from __future__ import annotations

from runner.compose import Job, compose_jobs
from runner.console import LOGGER, show_error
from runner.errors import EXIT_DONE, EXIT_STOPPED, RunnerError, StoppedOnRequest
from runner.preflight import Ready, preflight


def run(argv: list[str]) -> int:
    """Train what `argv` describes.

    Raises:
        RunnerError: whatever the config, the data or the training raises; of a multirun the first.
    """
    compose_jobs(argv, "train", train_job)
    return EXIT_DONE


def train_job(job: Job) -> float:
    """Train one job and return the best value of the monitored metric, which Hydra hands to the sweeper."""
    ready = _ready_or_gone(job)
    from runner.launch import launch  # noqa: PLC0415 - torch is imported only once config and data are good

    try:
        return launch(ready, job.overrides, folder=job.folder).best.value
    except StoppedOnRequest:
        if job.folder is None:
            raise
        # Hydra would go on with the next job; whoever asks one job to stop means the sweep.
        LOGGER.warning("the sweep ends here: its later jobs were not started")
        raise SystemExit(EXIT_STOPPED) from None


def _ready_or_gone(job: Job) -> Ready:
    """Check a job; one that is refused leaves no folder, though Hydra has made it beforehand."""
    try:
        return preflight(job.config)
    except RunnerError as error:
        if job.folder is not None:
            show_error(error)
            job.folder.rmdir()
        raise
