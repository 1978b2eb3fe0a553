"""Submits a training as a SLURM job, and runs it on each of the job's processes.

The environment of `srun` gives each process its rank. SLURM requeues a job by itself when a node fails. Near its time
limit, or when it is preempted, a job saves a checkpoint and requeues itself; the next start resumes the run.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import shlex
import subprocess
import sys
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from runner.base import console
from runner.base.console import LOGGER, log_to_file
from runner.base.errors import EXIT_DONE, EXIT_STOPPED, LaunchError, OutputError, RunnerError, StoppedOnRequest
from runner.base.stop import StopRequest
from runner.base.untrusted import printable
from runner.config.schema import Config
from runner.launch.environment import adopted_rank, refusal_shared
from runner.launch.plan import LaunchPlan
from runner.run import run_folder
from runner.run.run_folder import read_record
from runner.training.attempt import Training

if TYPE_CHECKING:
    from runner.launch.preflight import Ready

# SLURM checks time limits about every half minute: its signal may come that much earlier than requested.
_EARLIEST_SECONDS = 90
_SECONDS_TO_ANSWER = 60
_LIMIT_IS_NEAR = "its time limit is near"


@dataclass(frozen=True, kw_only=True)
class SubmittedRun:
    """What a job calls on each of its processes, again after each requeue."""

    config: Config
    run_dir: Path
    training: Training

    def __call__(self) -> str:
        """Train, and return the run folder.

        Raises:
            SystemExit: the run did not complete.
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

    def checkpoint(self) -> Any:  # noqa: ANN401 - a type of submitit, an optional dependency
        """What submitit requeues when it is interrupted before this run handles signals itself."""
        from submitit.helpers import DelayedSubmission  # noqa: PLC0415

        return DelayedSubmission(self)

    def _exit_code(self) -> int:
        rank, before = int(os.environ["SLURM_PROCID"]), _newest_checkpoint(self.run_dir)
        num_earlier = self._num_attempts()
        try:
            self._train(num_earlier)
        except StoppedOnRequest:
            if rank != 0:
                return EXIT_DONE  # on any other code srun kills rank 0, which may still be saving
            _requeue_if_interrupted(self.config, has_progress=_newest_checkpoint(self.run_dir) != before)
            return EXIT_STOPPED
        except Exception as error:
            if rank != 0:
                self._record(rank, error, num_earlier)
            raise
        return EXIT_DONE

    def _num_attempts(self) -> int:
        return int(read_record(self.run_dir)["attempts"]) if (self.run_dir / "run.json").is_file() else 0

    def _record(self, rank: int, error: Exception, num_earlier: int) -> None:
        """Write this failure to run.json: rank 0, which else does so, is killed as soon as this rank ends."""
        from runner.launch.ranks.failure import correct_record, record_failure  # noqa: PLC0415

        record = record_failure(rank, error, None)
        if not record.is_echo:
            correct_record(self.run_dir, record, num_earlier)

    def _train(self, num_earlier: int) -> None:
        from runner.launch import launch  # noqa: PLC0415 - torch only after all checks
        from runner.launch.preflight import preflight  # noqa: PLC0415

        attempt = replace(self.training.attempt, is_resumed=num_earlier > 0, num_earlier=num_earlier)
        if int(os.environ.get("SLURM_RESTART_COUNT", "0")):
            attempt = replace(attempt, notes=())  # they were logged before the requeue
        with StopRequest() as stop:
            with refusal_shared(adopted_rank()) as passed:
                ready = preflight(self.config, self.run_dir, is_in_job=True, may_download=attempt.may_download)
                passed.set()
            launch(ready, replace(self.training, attempt=attempt), folder=self.run_dir, stop=stop)


def _requeue_if_interrupted(config: Config, *, has_progress: bool) -> None:
    """Requeue this job if SLURM interrupted it, and not its owner."""
    job_id = os.environ["SLURM_JOB_ID"]
    job = _scontrol("show", "job", "--oneliner", job_id)
    reason = why_interrupted(job, config.dist.slurm.warning_seconds)
    if reason is None:
        # In state RUNNING, somebody sent the signal by hand; else the job was cancelled or requeued.
        LOGGER.info("job %s stops here, in state %s", job_id, _field(job, "JobState"))
        return
    if not has_progress and reason == _LIMIT_IS_NEAR:  # the next allocation would be no longer
        raise LaunchError(
            f"job {job_id} is not put back into the queue: the run has saved no step since it was started, and would "
            f"save none in the same time again, as {reason}; raise "
            f"dist.slurm.time_minutes = {config.dist.slurm.time_minutes}"
        )
    _scontrol("requeue", job_id)
    LOGGER.info("job %s is back in the queue (%s); it will continue the run", job_id, reason)


def why_interrupted(job: str, warning_seconds: int, now: datetime | None = None) -> str | None:
    """Why SLURM interrupts a job that has to requeue itself; None where its owner cancelled or requeued it.

    Args:
        job: output of `scontrol show job --oneliner`.
        warning_seconds: how long before the time limit SLURM was asked to send its signal.
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


def _scontrol(*arguments: str) -> str:
    """The output of scontrol.

    Raises:
        LaunchError: it fails or can't be started.
    """
    try:
        done = subprocess.run(
            ["scontrol", *arguments], capture_output=True, text=True, check=True, timeout=_SECONDS_TO_ANSWER
        )
    except (OSError, subprocess.SubprocessError) as error:
        said = getattr(error, "stderr", None) or str(error)
        raise LaunchError(
            f"the run is saved, but scontrol {' '.join(arguments)} failed, so that it does not continue by itself: "
            f"{said.strip()}; continue it with python -m runner resume run=…"
        ) from error
    return done.stdout


def _newest_checkpoint(run_dir: Path) -> str | None:
    pointer = run_dir / "checkpoints" / "last"
    return pointer.read_text(encoding="utf-8") if pointer.is_file() else None


@dataclass(frozen=True, kw_only=True)
class Submission:
    """A submitted run."""

    job_id: str
    run_dir: Path


def submit(ready: Ready, folder: Path | None, training: Training) -> Submission:
    """Make the run folder and submit its job.

    Args:
        ready: what passed the preflight.
        folder: the run folder, empty or that of a run to continue; by default a new one is made under output_dir.
        training: what the job does.

    Raises:
        LaunchError: SLURM refuses the job, after which a new folder is removed; or has a job of this run already.
        OutputError: another process is training this run.
    """
    output_dir = Path(ready.config.output_dir)
    run_dir = (folder or run_folder.make_run_folder(output_dir)).resolve()
    if printable(str(run_dir)) != str(run_dir):  # the job's script contains the path
        raise OutputError(
            f"{printable(str(run_dir))}: a run that is submitted needs a folder without control characters"
        )
    if run_folder.is_alive(run_dir):
        raise OutputError(f"{run_dir}: another process is working on this run")
    is_new = not any(run_dir.iterdir())
    try:
        _refuse_if_queued(run_dir)
        job_id, log = _enqueue(ready, run_dir, training)
    except BaseException:
        if is_new:
            run_folder.remove_unused(run_dir, output_dir)
        raise
    with log_to_file(run_dir / "logs" / "launcher.log"):
        LOGGER.info("launch      %s (%s)", ready.plan.mode, ready.plan.reason)
        LOGGER.info("submitted   job %s to SLURM: %s", job_id, _shown(ready.config, ready.plan))
        LOGGER.info("run folder  %s", run_dir)
        LOGGER.info("to follow   tail -F %s", shlex.quote(str(log)))
        LOGGER.info("its state   squeue --job %s", job_id)
        LOGGER.info("to cancel   scancel %s (what is trained by then is saved)", job_id)
    return Submission(job_id=job_id, run_dir=run_dir)


def _refuse_if_queued(run_dir: Path) -> None:
    """Refuse a second job of a run.

    Raises:
        LaunchError: an earlier job of this run is still in the queue, or squeue fails.
    """
    jobs = run_folder.submitted_jobs(run_dir)
    if not jobs:
        return
    command = ["squeue", "--noheader", "--me", "--format=%A"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=_SECONDS_TO_ANSWER)
    except (OSError, subprocess.SubprocessError) as error:
        said = getattr(error, "stderr", None) or str(error)
        raise LaunchError(f"SLURM does not say whether an earlier job of {run_dir} waits: {said.strip()}") from error
    if queued := jobs & set(done.stdout.split()):
        job = min(queued)
        raise LaunchError(f"job {job} of {run_dir} is still in SLURM's queue; wait for it, or cancel it: scancel {job}")


def _enqueue(ready: Ready, run_dir: Path, training: Training) -> tuple[str, Path]:
    """Submit the job; returns its number, and the log of its rank 0."""
    # Not at the top: submitit is an optional dependency.
    from submitit import SlurmExecutor  # noqa: PLC0415
    from submitit.core.utils import FailedJobError, FailedSubmissionError  # noqa: PLC0415

    if not training.attempt.is_resumed:
        run_folder.RunFolder(run_dir).write("config.yaml", ready.config.to_yaml())
    # With -P, Python imports nothing from the working folder.
    executor = SlurmExecutor(run_dir / "logs", python=f"{shlex.quote(sys.executable)} -P")
    executor.update_parameters(**_parameters(ready.config, ready.plan))
    try:
        with contextlib.redirect_stderr(io.StringIO()):  # submitit also prints the message that is raised below
            job = executor.submit(SubmittedRun(config=ready.config, run_dir=run_dir, training=training))
    except (FailedJobError, FailedSubmissionError) as error:
        reason = " ".join(str(error).split()).removeprefix("sbatch: error: ")
        raise LaunchError(
            f"SLURM refused the job: {reason}; the requested resources are those of dist.slurm (see also sinfo)"
        ) from error
    return job.job_id, job.paths.stdout


def _parameters(config: Config, plan: LaunchPlan) -> dict[str, Any]:
    """Parameters of submitit's executor."""
    slurm = config.dist.slurm
    extra = {name.replace("_", "-"): value for name, value in slurm.extra.items() if value not in (None, False)}
    says_gpus = "gpu" in str(extra.get("gres", ""))
    return {
        "job_name": slurm.job_name,
        "partition": slurm.partition,
        "account": slurm.account,
        "constraint": slurm.constraint,
        "time": slurm.time_minutes,
        "nodes": plan.num_nodes,
        "ntasks_per_node": plan.procs_per_node,
        "gpus_per_node": None if says_gpus else slurm.gpus_per_node or None,
        "cpus_per_task": slurm.cpus_per_task,
        "mem": slurm.mem,
        "wckey": None,  # submitit's default is refused where wckeys are enforced
        # By default submitit uses USR2, for a handler of its own.
        "setup": ["export SUBMITIT_PREEMPT_SIGNAL=USR1", *slurm.setup],
        "stderr_to_stdout": True,
        # If one process dies, srun kills the others at once, which may wait for it within NCCL.
        "srun_args": ["--kill-on-bad-exit=1"],
        "additional_parameters": {"requeue": True, "signal": f"USR1@{slurm.warning_seconds}", **extra},
    }


def _shown(config: Config, plan: LaunchPlan) -> str:
    slurm = config.dist.slurm
    nodes = f"{plan.num_nodes} nodes" if plan.num_nodes > 1 else "1 node"
    processes = f"{plan.procs_per_node} processes" if plan.procs_per_node > 1 else "1 process"
    where = "" if slurm.partition is None else f", partition {slurm.partition}"
    return f"{nodes} × {processes}, {slurm.gpus_per_node} GPUs per node, {slurm.time_minutes} minutes{where}"
