"""The process of one trial, started by a sweep: `python -m runner.tools.sweep.trial SWEEP NUMBER PARENT`."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

from runner.base import console
from runner.base.errors import EXIT_DONE, EXIT_FAILURE, RunnerError, StoppedOnRequest
from runner.base.files import write_json
from runner.base.process import exit_without_cleanup
from runner.base.stop import StopRequest
from runner.config.saved import saved_config
from runner.dist.watchdog import Watchdog, die_with_parent
from runner.launch.preflight import preflight
from runner.launch.slurm import Submission
from runner.tools.hooks import training_hooks
from runner.tools.sweep.sweep_folder import SweepFolder, Trial, load_trial
from runner.training.attempt import Attempt, Training

JOB_FILE = Path("logs", "trial.job.json")
ERROR_FILE = Path("logs", "trial.error.json")
LOG_FILE = Path("logs", "trial.log")
MAY_NOT_DOWNLOAD = "--no-download"
"""Fourth argument, where the weights of the trial were not typed and so are not downloaded."""


def train_trial() -> int:
    """Start or resume one trial; its run folder, or an error file there, tells how it ended.

    Returns:
        The exit code that training it alone would have.
    """
    sweep, number, parent = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    die_with_parent(parent)
    watchdog = Watchdog(parent=parent, stall_seconds=None, on_stall=lambda seconds: None)
    with watchdog.running(), StopRequest() as stop:
        console.set_up()
        folder = SweepFolder(sweep)
        trial = load_trial(sweep / "trials" / f"{number}.json")
        try:
            _train(folder, trial, stop, may_download=MAY_NOT_DOWNLOAD not in sys.argv[4:])
        except StoppedOnRequest as request:
            console.show_error(request)
            return request.exit_code
        except Exception as error:
            return _record_failure(error, folder.run_dir(trial))
    return EXIT_DONE


def _train(folder: SweepFolder, trial: Trial, stop: StopRequest, *, may_download: bool) -> None:
    run_dir = folder.run_dir(trial)
    is_resumed = (run_dir / "run.json").is_file()
    config = saved_config(trial.config).with_experiments(trial.experiments)
    ready = preflight(config, run_dir, may_download=may_download)
    from runner.launch import launch  # noqa: PLC0415 - imports torch, so only once config and data are checked

    attempt = Attempt(
        overrides=tuple(trial.overrides),
        command=shlex.join(["python", "-m", "runner", *trial.overrides]),
        is_resumed=is_resumed,
        may_download=may_download,
    )
    hooks = training_hooks(config, folder.path / "trials" / f"{trial.number}.json")
    result = launch(ready, Training(attempt=attempt, hooks=hooks), folder=run_dir, stop=stop)
    if isinstance(result, Submission):
        write_json(run_dir / JOB_FILE, {"job_id": result.job_id})


def _record_failure(error: Exception, run_dir: Path) -> int:
    """Write the error file, which the sweep reads even where there is no run.json; returns the exit code."""
    name = error.name if isinstance(error, RunnerError) else type(error).__name__
    write_json(run_dir / ERROR_FILE, {"name": name, "message": str(error)})
    if isinstance(error, RunnerError):
        console.show_error(error)
        return error.exit_code
    console.show_traceback()
    return EXIT_FAILURE


if __name__ == "__main__":
    exit_without_cleanup(train_trial())
