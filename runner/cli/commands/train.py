"""`python -m runner [train] [overrides]`: train one experiment, or each job of a multirun."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from runner.base import console
from runner.base.console import LOGGER, show_error
from runner.base.errors import EXIT_DONE, EXIT_STOPPED, LaunchError, OutputError, RunnerError, StoppedOnRequest
from runner.base.stop import StopRequest
from runner.config.arguments import MULTIRUN
from runner.config.compose import compose
from runner.config.composing import Job
from runner.config.multirun import Multirun
from runner.config.saved import load_saved
from runner.launch.environment import Place, adopted_place
from runner.launch.ranks.refused import refusals_told
from runner.launch.slurm.submitted import Submission
from runner.run.run_folder import read_record
from runner.tools.hooks import leaderboard_refreshed, training_hooks
from runner.tools.sweep.composer import identity_of
from runner.training.attempt import Attempt
from runner.training.work import Training

if TYPE_CHECKING:
    from runner.launch.preflight import Ready


def run(argv: list[str]) -> int:
    """Train what `argv` describes.

    Raises:
        RunnerError: whatever the config, the data or the training raises; of a multirun the first.
    """
    place = adopted_place()
    if MULTIRUN & set(argv):
        _refuse_sweep_within(place)
    with StopRequest() as stop, refusals_told(place) as passed:
        composed = compose(argv)
        if isinstance(composed, Job):
            from runner.launch.preflight import preflight  # noqa: PLC0415 - a mistake in the config is told before

            ready = preflight(composed.config)
            passed.set()
            from runner.launch import launch  # noqa: PLC0415 - torch is imported only once config and data are good

            training = Training(attempt=Attempt(overrides=composed.overrides), hooks=training_hooks(composed.config))
            launch(ready, training, stop=stop)
    if isinstance(composed, Multirun):
        _refuse_sweep_within(place)
        composed.carry_out(train_job_of_sweep)
    return EXIT_DONE


def _refuse_sweep_within(place: Place | None) -> None:
    if place is not None and place.world_size != 1:
        raise LaunchError(
            f"a sweep (-m) within {place.starter}: each of the {place.world_size or 'many'} processes would run the "
            "whole sweep. Start the sweep outside, python -m runner -m dist.procs_per_node=N …, which starts the "
            "processes of each job itself, or -m dist=slurm, which submits each; or start one job here"
        )


def train_job_of_sweep(job: Job) -> float | None:
    """Train one job of a multirun where a launcher other than ours calls it; one that was cut goes on.

    Returns:
        The best value of the monitored metric, for the sweeper; None of a job that was only submitted.
    """
    assert job.folder is not None, "a multirun has a folder for each job"
    console.set_up()  # joblib and submitit call this in processes of their own
    from runner.launch import launch  # noqa: PLC0415

    try:
        with StopRequest() as stop, leaderboard_refreshed(job.folder):
            ready = _ready_or_gone(job)
            status = _status(ready, job.folder)
            if status in ("completed", "pruned"):
                LOGGER.info("%s is already %s", job.folder, status)
                return float(read_record(job.folder)["best"]["value"])
            attempt = Attempt(overrides=job.overrides, is_resumed=status is not None, may_download=job.may_download)
            hooks = training_hooks(ready.config, _trial_file(job.folder))
            result = launch(ready, Training(attempt=attempt, hooks=hooks), folder=job.folder, stop=stop)
    except StoppedOnRequest:
        # Hydra would go on with the next job; whoever asks one job to stop means the sweep.
        LOGGER.warning("the sweep ends here: its later jobs were not started")
        raise SystemExit(EXIT_STOPPED) from None
    return None if isinstance(result, Submission) else result.best.value


def _ready_or_gone(job: Job) -> Ready:
    """Check a job; one that is refused leaves no folder, though Hydra has made it beforehand."""
    from runner.launch.preflight import preflight  # noqa: PLC0415 - a mistake in the config is told before this is imported

    try:
        return preflight(job.config, job.folder, may_download=job.may_download)
    except RunnerError as error:
        if job.folder is not None:
            show_error(error)
            if not any(job.folder.iterdir()):
                job.folder.rmdir()
        raise


def _status(ready: Ready, folder: Path) -> str | None:
    """The status of the run that a folder holds already; None where it holds none.

    Raises:
        OutputError: when it is another run.
    """
    if not (folder / "run.json").exists():
        return None
    if identity_of(load_saved(folder, only_reads=True)) != identity_of(ready.config):
        raise OutputError(f"{folder} already holds another run; choose another sweep.dir")
    return str(read_record(folder)["status"])


def _trial_file(folder: Path) -> Path | None:
    """The record of this job as a trial of our sweeper."""
    file = folder.parent / "trials" / f"{folder.name}.json"
    return file if file.is_file() else None
