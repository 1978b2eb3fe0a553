"""Hands a run to SLURM's queue, through submitit. Imports no torch; what the job does is in `slurm_job.py`."""

from __future__ import annotations

import contextlib
import io
import shlex
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from runner.base.console import LOGGER, log_to_file
from runner.base.errors import LaunchError, OutputError
from runner.base.untrusted import printable
from runner.config.schema import Config
from runner.launch.plan import LaunchPlan
from runner.launch.slurm.slurm_job import SubmittedRun
from runner.run import run_folder
from runner.training.work import Training

if TYPE_CHECKING:
    from runner.launch.preflight import Ready

_SECONDS_TO_ANSWER = 60


@dataclass(frozen=True, kw_only=True)
class Submission:
    """A run that waits in SLURM's queue."""

    job_id: str
    run_dir: Path


def submit(ready: Ready, folder: Path | None, training: Training) -> Submission:
    """Make the run folder and put its job into the queue.

    Args:
        ready: what passed the checks that this machine can make.
        folder: the folder of this run: empty, or to go on in; by default a new one is made under output_dir.
        training: what the job does.

    Raises:
        LaunchError: when SLURM refuses the job, after which a new folder is gone; or has one of this run already.
        OutputError: when the run is at work already.
    """
    output_dir = Path(ready.config.output_dir)
    run_dir = (folder or run_folder.make_new(output_dir)).resolve()
    if printable(str(run_dir)) != str(run_dir):  # It stands in the job's script.
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
            run_folder.unmake(run_dir, output_dir)
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
    """Two jobs of one run would get into each other's way.

    Raises:
        LaunchError: when an earlier job of this run is still in the queue, or SLURM does not say.
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
    """Number of the job, and the file that shows what its rank 0 says."""
    # Not at the top: an extra, and the machines that run the job need no more of this module than its import.
    from submitit import SlurmExecutor  # noqa: PLC0415
    from submitit.core.utils import FailedJobError, FailedSubmissionError  # noqa: PLC0415

    if not training.attempt.is_resumed:
        run_folder.RunFolder(run_dir).write("config.yaml", ready.config.to_yaml())
    # -P: the folder in which the job was typed is no place to import from.
    executor = SlurmExecutor(run_dir / "logs", python=f"{shlex.quote(sys.executable)} -P")
    executor.update_parameters(**_parameters(ready.config, ready.plan))
    told = io.StringIO()  # submitit prints what sbatch says against it; it is told below
    try:
        with contextlib.redirect_stderr(told):
            job = executor.submit(SubmittedRun(config=ready.config, run_dir=run_dir, training=training))
    except (FailedJobError, FailedSubmissionError) as error:
        reason = " ".join(str(error).split()).removeprefix("sbatch: error: ")
        raise LaunchError(
            f"SLURM refused the job: {reason}; what it is asked for stands under dist.slurm (see also sinfo)"
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
        "wckey": None,  # submitit's own would be refused where these are enforced
        # submitit warns its own handler with USR2 where it is not told otherwise; see slurm_job.py.
        "setup": ["export SUBMITIT_PREEMPT_SIGNAL=USR1", *slurm.setup],
        "stderr_to_stdout": True,
        # One process that dies takes the others along at once, also those that wait for it inside of NCCL.
        "srun_args": ["--kill-on-bad-exit=1"],
        "additional_parameters": {"requeue": True, "signal": f"USR1@{slurm.warning_seconds}", **extra},
    }


def _shown(config: Config, plan: LaunchPlan) -> str:
    slurm = config.dist.slurm
    nodes = f"{plan.num_nodes} nodes" if plan.num_nodes > 1 else "1 node"
    processes = f"{plan.procs_per_node} processes" if plan.procs_per_node > 1 else "1 process"
    where = "" if slurm.partition is None else f", partition {slurm.partition}"
    return f"{nodes} × {processes}, {slurm.gpus_per_node} GPUs per node, {slurm.time_minutes} minutes{where}"
