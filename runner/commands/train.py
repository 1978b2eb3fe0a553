"""`python -m runner [train] [overrides]`: train one experiment, or each job of a multirun."""

from __future__ import annotations

from typing import TYPE_CHECKING

from runner.attempt import Attempt
from runner.compose import Job, compose_jobs
from runner.console import LOGGER, show_error
from runner.errors import EXIT_DONE, EXIT_STOPPED, LaunchError, OutputError, RunnerError, StoppedOnRequest
from runner.launch.refused import refusals_told
from runner.launch.submitted import Submission
from runner.plan.environment import adopted_place
from runner.stop import StopRequest

if TYPE_CHECKING:
    from runner.preflight import Ready


def run(argv: list[str]) -> int:
    """Train what `argv` describes.

    Raises:
        RunnerError: whatever the config, the data or the training raises; of a multirun the first.
    """
    place = adopted_place()
    if place is not None and place.world_size != 1 and (flags := {"-m", "--multirun"} & set(argv)):
        raise LaunchError(
            f"{flags.pop()} within {place.starter}: each of the {place.world_size or 'many'} processes would run the "
            "whole sweep. Start the sweep outside, python -m runner -m dist.procs_per_node=N …, which starts the "
            "processes of each job itself, or -m dist=slurm, which submits each; or start one job here"
        )
    with StopRequest() as stop, refusals_told(place) as passed:

        def train_passed(job: Job) -> float | None:
            ready = _ready_or_gone(job)
            passed.set()
            return train_job(ready, job, stop)

        compose_jobs(argv, "train", train_passed)
    return EXIT_DONE


def train_job(ready: Ready, job: Job, stop: StopRequest) -> float | None:
    """Train one job and return the best value of the monitored metric, which Hydra hands to the sweeper.

    Of a job that was only submitted nothing is known yet: None.
    """
    from runner.launch import launch  # noqa: PLC0415 - torch is imported only once config and data are good

    try:
        result = launch(ready, Attempt(overrides=job.overrides), folder=job.folder, stop=stop)
    except StoppedOnRequest:
        if job.folder is None:
            raise
        # Hydra would go on with the next job; whoever asks one job to stop means the sweep.
        LOGGER.warning("the sweep ends here: its later jobs were not started")
        raise SystemExit(EXIT_STOPPED) from None
    return None if isinstance(result, Submission) else result.best.value


def _ready_or_gone(job: Job) -> Ready:
    """Check a job; one that is refused leaves no folder, though Hydra has made it beforehand."""
    from runner.preflight import preflight  # noqa: PLC0415 - a mistake in the config is told before this is imported

    try:
        if job.folder is not None and (job.folder / "run.json").exists():
            raise OutputError(f"{job.folder} already holds a run; choose another sweep.dir")
        return preflight(job.config)
    except RunnerError as error:
        if job.folder is not None:
            show_error(error)
            if not any(job.folder.iterdir()):
                job.folder.rmdir()
        raise
