"""What a submitted job does on each of its processes: take up the run, and see that it goes on after an interruption.

SLURM's step gives each process its place, as under any `srun`. SLURM itself puts a job back into the queue when a node
fails or somebody requeues it. A run that has saved itself because its time is up, or because it is preempted, would
merely end: it asks to be put back.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any

from runner.base import console
from runner.base.console import LOGGER
from runner.base.errors import EXIT_DONE, EXIT_STOPPED, LaunchError, RunnerError, StoppedOnRequest
from runner.base.stop import StopRequest
from runner.config.schema import Config
from runner.launch.environment import adopted_place
from runner.launch.ranks.refused import refusals_told
from runner.run.run_folder import read_record
from runner.training.work import Training

# SLURM looks at time limits every half minute or so: its signal may come that much earlier than asked for.
_EARLIEST_SECONDS = 90
_SECONDS_TO_ANSWER = 60
_LIMIT_IS_NEAR = "its time limit is near"


@dataclass(frozen=True, kw_only=True)
class SubmittedRun:
    """One run as a job: called on each process, after each requeue anew."""

    config: Config
    run_dir: Path
    training: Training

    def __call__(self) -> str:
        """Train; returns the run folder.

        Raises:
            SystemExit: with the exit code of a run that did not complete.
        """
        console.set_up()
        try:
            try:
                code = self._exit_code()
            finally:
                if os.environ["SLURM_PROCID"] == "0":
                    self.training.hooks.after_job(self.run_dir)
        except RunnerError as error:
            console.show_error(error)
            code = error.exit_code
        if code != EXIT_DONE:
            sys.exit(code)
        return str(self.run_dir)

    def checkpoint(self) -> Any:  # noqa: ANN401 - of submitit, which has to be there only where it calls this
        """What submitit puts back into the queue when it is interrupted before this run listens to signals itself."""
        from submitit.helpers import DelayedSubmission  # noqa: PLC0415

        return DelayedSubmission(self)

    def _exit_code(self) -> int:
        rank, before = int(os.environ["SLURM_PROCID"]), _newest_checkpoint(self.run_dir)
        num_earlier = self._num_attempts()
        try:
            self._train(num_earlier)
        except StoppedOnRequest:
            if rank != 0:
                return EXIT_DONE  # srun takes any other code for a reason to kill rank 0, which may still be saving
            _go_on_if_interrupted(self.config, has_progress=_newest_checkpoint(self.run_dir) != before)
            return EXIT_STOPPED
        except Exception as error:
            if rank != 0:
                self._record(rank, error, num_earlier)
            raise
        return EXIT_DONE

    def _num_attempts(self) -> int:
        return int(read_record(self.run_dir)["attempts"]) if (self.run_dir / "run.json").is_file() else 0

    def _record(self, rank: int, error: Exception, num_earlier: int) -> None:
        """Let run.json name this failure: rank 0, which would see to it, is killed as soon as this rank ends."""
        from runner.launch.ranks.failure import correct_record, record_failure  # noqa: PLC0415

        record = record_failure(rank, error, None)
        if not record.is_echo:
            correct_record(self.run_dir, record, num_earlier)

    def _train(self, num_earlier: int) -> None:
        from runner.launch import launch  # noqa: PLC0415 - torch only once config and data are good
        from runner.launch.preflight import preflight  # noqa: PLC0415

        attempt = replace(self.training.attempt, is_resumed=num_earlier > 0, num_earlier=num_earlier)
        if int(os.environ.get("SLURM_RESTART_COUNT", "0")):
            attempt = replace(attempt, notes=())  # what was changed for this job has been said
        with StopRequest() as stop:
            with refusals_told(adopted_place()) as passed:
                ready = preflight(self.config, self.run_dir, is_in_job=True, may_download=attempt.may_download)
                passed.set()
            launch(ready, replace(self.training, attempt=attempt), folder=self.run_dir, stop=stop)


def _go_on_if_interrupted(config: Config, *, has_progress: bool) -> None:
    """Put this job back into the queue if it was SLURM that wanted it to stop, not its owner."""
    job_id = os.environ["SLURM_JOB_ID"]
    job = _ask("show", "job", "--oneliner", job_id)
    reason = why_interrupted(job, config.dist.slurm.warning_seconds)
    if reason is None:
        # RUNNING: somebody has sent the signal by hand. Anything else: it was cancelled or requeued.
        LOGGER.info("job %s stops here, in state %s", job_id, _field(job, "JobState"))
        return
    if not has_progress and reason == _LIMIT_IS_NEAR:  # the next allocation would be no longer
        raise LaunchError(
            f"job {job_id} is not put back into the queue: the run has saved no step since it was started, and never "
            f"would, as {reason}; raise dist.slurm.time_minutes = {config.dist.slurm.time_minutes}"
        )
    _ask("requeue", job_id)
    LOGGER.info("job %s is back in the queue (%s); the run goes on where it was", job_id, reason)


def why_interrupted(job: str, warning_seconds: int, now: datetime | None = None) -> str | None:
    """Why SLURM stops a job that would end if nobody put it back into the queue; None where its owner stops it.

    A job that was cancelled or requeued is no longer running; what becomes of it is settled.

    Args:
        job: what `scontrol show job --oneliner` says about it.
        warning_seconds: when SLURM was to warn before the time limit.
        now: for tests.
    """
    if _field(job, "JobState") != "RUNNING":
        return None
    if _field(job, "PreemptTime") not in (None, "None", "N/A"):
        return "preempted by another job"
    end = _field(job, "EndTime")
    if end is None or end in ("Unknown", "N/A"):
        return None
    seconds_left = (datetime.fromisoformat(end) - (now or datetime.now())).total_seconds()
    return _LIMIT_IS_NEAR if seconds_left <= warning_seconds + _EARLIEST_SECONDS else None


def _field(job: str, name: str) -> str | None:
    match = re.search(rf"(?:^|\s){name}=(\S*)", job)
    return match[1] if match else None


def _ask(*arguments: str) -> str:
    """What scontrol answers.

    Raises:
        LaunchError: when it refuses or can't be reached.
    """
    try:
        done = subprocess.run(
            ["scontrol", *arguments], capture_output=True, text=True, check=True, timeout=_SECONDS_TO_ANSWER
        )
    except (OSError, subprocess.SubprocessError) as error:
        said = getattr(error, "stderr", None) or str(error)
        raise LaunchError(
            f"the run is saved, but scontrol {' '.join(arguments)} failed, so that it will not go on by itself: "
            f"{said.strip()}; go on with python -m runner resume run=…"
        ) from error
    return done.stdout


def _newest_checkpoint(run_dir: Path) -> str | None:
    pointer = run_dir / "checkpoints" / "last"
    return pointer.read_text(encoding="utf-8") if pointer.is_file() else None
