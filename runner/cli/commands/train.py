"""`python -m runner [train] [overrides]`: train one experiment, or each job of a sweep (-m)."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from runner.base import console
from runner.base.console import LOGGER, show_error
from runner.base.errors import EXIT_DONE, EXIT_STOPPED, LaunchError, OutputError, RunnerError, StoppedOnRequest
from runner.base.stop import StopRequest
from runner.config.arguments import MULTIRUN
from runner.config.compose import compose
from runner.config.hydra_compose import ComposedJob
from runner.config.multirun import Multirun
from runner.config.saved import load_saved
from runner.launch.environment import AdoptedRank, adopted_rank, refusal_shared
from runner.launch.slurm import Submission
from runner.run.run_folder import read_record
from runner.tools.hooks import leaderboard_refreshed, training_hooks
from runner.tools.sweep.composer import trial_identity
from runner.training.attempt import Attempt, Training

if TYPE_CHECKING:
    from runner.launch.preflight import Ready


def run(argv: list[str]) -> int:
    """Train one experiment or a sweep.

    Raises:
        RunnerError: what config, data or training raise; of a sweep the first error.
    """
    place = adopted_rank()
    if MULTIRUN & set(argv):
        _refuse_sweep_within(place)
    with StopRequest() as stop, refusal_shared(place) as passed:
        composed = compose(argv)
        if isinstance(composed, ComposedJob):
            from runner.launch.preflight import preflight  # noqa: PLC0415 - not needed to report a mistake in the config

            ready = preflight(composed.config)
            passed.set()
            from runner.launch import launch  # noqa: PLC0415 - torch only after config and data are checked
            from runner.tools.doctor.batch_size import settle_batch_size  # noqa: PLC0415 - as above

            training = Training(attempt=Attempt(overrides=composed.overrides), hooks=training_hooks(composed.config))
            launch(settle_batch_size(ready), training, stop=stop)
    if isinstance(composed, Multirun):
        _refuse_sweep_within(place)
        composed.run(train_job_of_sweep)
    return EXIT_DONE


def _refuse_sweep_within(place: AdoptedRank | None) -> None:
    if place is not None and place.world_size != 1:
        raise LaunchError(
            f"a sweep (-m) within {place.starter}: each of the {place.world_size or 'many'} processes would run the "
            "whole sweep. Start the sweep outside, python -m runner -m dist.procs_per_node=N …, which starts the "
            "processes of each job itself, or -m dist=slurm, which submits each; or start one job here"
        )


def train_job_of_sweep(job: ComposedJob) -> float | None:
    """Train one job of a sweep, for Hydra's launchers; an unfinished run in its folder is resumed.

    Returns:
        The best value of the monitored metric, for the sweeper; None for a job that was submitted to SLURM.
    """
    assert job.folder is not None, "a multirun has a folder for each job"
    console.set_up()  # joblib and submitit call this function in other processes
    from runner.launch import launch  # noqa: PLC0415

    try:
        with StopRequest() as stop, leaderboard_refreshed(job.folder):
            ready = _preflight(job)
            status = _status(ready, job.folder)
            if status in ("completed", "pruned"):
                LOGGER.info("%s is already %s", job.folder, status)
                return float(read_record(job.folder)["best"]["value"])
            attempt = Attempt(overrides=job.overrides, is_resumed=status is not None, may_download=job.may_download)
            hooks = training_hooks(ready.config, _trial_file(job.folder))
            result = launch(ready, Training(attempt=attempt, hooks=hooks), folder=job.folder, stop=stop)
    except StoppedOnRequest:
        # After an exception Hydra would start the next job; a stop request is meant for the whole sweep.
        LOGGER.warning("the sweep ends here: its later jobs were not started")
        raise SystemExit(EXIT_STOPPED) from None
    return None if isinstance(result, Submission) else result.best.value


def _preflight(job: ComposedJob) -> Ready:
    """Check a job; if that fails, remove its folder, which Hydra has made."""
    from runner.launch.preflight import preflight  # noqa: PLC0415 - not needed to report a mistake in the config

    try:
        return preflight(job.config, job.folder, may_download=job.may_download)
    except RunnerError as error:
        if job.folder is not None:
            show_error(error)
            if not any(job.folder.iterdir()):
                job.folder.rmdir()
        raise


def _status(ready: Ready, folder: Path) -> str | None:
    """The status of the run in a folder; None where there is none.

    Raises:
        OutputError: the folder has another run.
    """
    if not (folder / "run.json").exists():
        return None
    saved = load_saved(folder, only_reads=True).model_dump(mode="json")
    if trial_identity(saved) != trial_identity(ready.config.model_dump(mode="json")):
        raise OutputError(f"{folder} already holds another run; choose another sweep.dir")
    return str(read_record(folder)["status"])


def _trial_file(folder: Path) -> Path | None:
    """The file of this job as a trial of our sweeper; None where it is none."""
    file = folder.parent / "trials" / f"{folder.name}.json"
    return file if file.is_file() else None
