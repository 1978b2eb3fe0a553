"""The processes of trials: which share of the machine each gets, how they start, stop and end; jobs of SLURM."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from joblib import cpu_count  # type: ignore[import-untyped]

from runner.base.console import LOGGER
from runner.base.errors import EXIT_DONE, EXIT_STOPPED, LaunchError
from runner.base.files import named_write_errors
from runner.config.schema import Config
from runner.launch.plan import num_usable_gpus
from runner.run.contents import Contents, Failure, SlurmJob, read_object
from runner.run.run_folder import submitted_jobs
from runner.tools.sweep.sweep_folder import SweepFolder, Trial
from runner.tools.sweep.trial import ERROR_FILE, JOB_FILE, LOG_FILE, MAY_NOT_DOWNLOAD

_SECONDS_TO_ANSWER = 60
# Each process imports torch and reads the data's index: more would overload a login node.
_MOST_SUBMITTING = 4


@dataclass(frozen=True, kw_only=True)
class TrialEnd:
    """How the process of a trial ended."""

    trial: Trial
    is_stopped: bool
    """It stopped on request and has saved its state."""
    failure: dict[str, Any] | None
    """Name and message of the error, where it failed."""
    job_id: str | None
    """The job, where the process only submitted the trial to SLURM."""


@dataclass(kw_only=True)
class _Running:
    trial: Trial
    process: subprocess.Popen[bytes]
    slot: Slot
    is_asked_to_stop: bool = False


@dataclass(kw_only=True)
class Pool:
    """The processes of the running trials. To be used by one thread: on Linux the processes die with it."""

    folder: SweepFolder
    slots: Sequence[Slot]
    may_download: bool = True
    """Whether the trials may download pretrained weights."""
    _running: list[_Running] = field(default_factory=list)

    @property
    def running(self) -> list[Trial]:
        """The trials whose processes run."""
        return [item.trial for item in self._running]

    @property
    def has_free_slot(self) -> bool:
        """Whether a slot is free."""
        return len(self._running) < len(self.slots)

    def start(self, trial: Trial) -> None:
        """Start a trial in a free slot, in a session of its own, so that a Ctrl-C reaches only the sweep."""
        taken = [item.slot for item in self._running]
        slot = next(slot for slot in self.slots if self.slots.count(slot) > taken.count(slot))
        run_dir = self.folder.run_dir(trial)
        with named_write_errors(run_dir):
            (run_dir / "logs").mkdir(parents=True, exist_ok=True)
            for word in (ERROR_FILE, JOB_FILE):
                (run_dir / word).unlink(missing_ok=True)
            log = (run_dir / LOG_FILE).open("ab")
        package_root = str(Path(__file__).resolve().parents[3])
        search_path = os.pathsep.join(filter(None, [package_root, os.environ.get("PYTHONPATH")]))
        with log:
            process = subprocess.Popen(
                [
                    sys.executable,
                    "-P",
                    "-m",
                    "runner.tools.sweep.trial",
                    str(self.folder.path),
                    str(trial.number),
                    str(os.getpid()),
                    *([] if self.may_download else [MAY_NOT_DOWNLOAD]),
                ],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**os.environ, **slot.environment, "PYTHONPATH": search_path},
                start_new_session=True,
            )
        self._running.append(_Running(trial=trial, process=process, slot=slot))

    def ended(self) -> Iterator[TrialEnd]:
        """The trials whose processes have ended since the last call."""
        for item in list(self._running):
            code = item.process.poll()
            if code is not None:
                self._running.remove(item)
                yield self._end(item, code)

    def ask_to_stop(self) -> None:
        """Send SIGTERM once to each trial; a second one would end it without saving."""
        for item in self._running:
            if not item.is_asked_to_stop:
                item.is_asked_to_stop = True
                item.process.send_signal(signal.SIGTERM)

    @contextmanager
    def kill_on_exit(self) -> Iterator[None]:
        """Kill the processes that are left at the end of the block."""
        try:
            yield
        finally:
            for item in self._running:
                os.killpg(item.process.pid, signal.SIGKILL)
                item.process.wait()

    def _end(self, item: _Running, code: int) -> TrialEnd:
        run_dir = self.folder.run_dir(item.trial)
        # SIGTERM before the trial handles signals ends the process; there was nothing to save yet.
        is_stopped = code == EXIT_STOPPED or (item.is_asked_to_stop and code == -signal.SIGTERM)
        is_good = code == EXIT_DONE or is_stopped
        job = _read(run_dir / JOB_FILE, SlurmJob)
        failure = None if is_good else _read(run_dir / ERROR_FILE, Failure) or _crash(code, run_dir / LOG_FILE)
        return TrialEnd(trial=item.trial, is_stopped=is_stopped, failure=failure, job_id=job.get("job_id"))


def _read(file: Path, rules: type[Contents]) -> dict[str, Any]:
    try:
        return read_object(file, rules)
    except FileNotFoundError:
        return {}


def _crash(code: int, log: Path) -> dict[str, Any]:
    if code >= 0:
        return {"name": "TrialCrashed", "message": f"its process ended with exit code {code}; its log: {log}"}
    name = signal.Signals(-code).name
    why = "; the system may have run out of memory" if name == "SIGKILL" else ""
    return {"name": "TrialCrashed", "message": f"its process was killed by {name}{why}; its log: {log}"}


def record_submitted_jobs(folder: SweepFolder, trials: Iterable[Trial]) -> None:
    """Record SLURM's jobs that were submitted just before the sweep was killed; of several jobs the newest."""
    for trial in trials:
        newest = max(_jobs_of(trial, folder.run_dir(trial)), key=int, default=None)
        if newest != trial.job_id:
            trial.job_id = newest
            folder.save(trial)


def _jobs_of(trial: Trial, run_dir: Path) -> set[str]:
    jobs = submitted_jobs(run_dir)
    if trial.job_id is not None:
        jobs.add(trial.job_id)
    with suppress(FileNotFoundError):
        jobs.add(read_object(run_dir / JOB_FILE, SlurmJob)["job_id"])
    return jobs


def queued_jobs(job_ids: Collection[str]) -> set[str]:
    """Those of these jobs that are in SLURM's queue, waiting or running.

    Raises:
        LaunchError: squeue fails.
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
            f"{said.strip()}; resume the sweep on a login node of the cluster"
        ) from error
    return set(done.stdout.split()) & set(job_ids)


@dataclass(frozen=True, kw_only=True)
class Slot:
    """A share of this machine for one trial at a time."""

    environment: Mapping[str, str]
    """Environment variables of its processes, besides those of the sweep."""


def slots_for(
    config: Config,
    num_trials: int,
    *,
    environ: Mapping[str, str] = os.environ,
    num_gpus: int | None = None,
    num_cores: int | None = None,
) -> list[Slot]:
    """One slot for each trial that runs at the same time.

    Args:
        config: of any trial.
        num_trials: there are at most so many slots.
        environ: environment variables of the sweep.
        num_gpus: GPUs that the sweep may use; by default those that torch sees, or none where the trials use the CPU.
        num_cores: cores that it may use; by default what affinity and the limits of a container leave.

    Raises:
        LaunchError: sweep.parallel trials need more GPUs than there are.
    """
    if config.dist.launcher == "submitted":
        submitting = _MOST_SUBMITTING if config.sweep.parallel == "auto" else config.sweep.parallel
        return [Slot(environment={})] * min(submitting, num_trials)
    if num_gpus is None:
        num_gpus = 0 if config.trainer.device in ("cpu", "mps") else num_usable_gpus()
    cores = int(cpu_count() if num_cores is None else num_cores)
    procs = 1 if config.dist.procs_per_node == "auto" else config.dist.procs_per_node
    threads = int(environ.get("OMP_NUM_THREADS", "0") or 0)
    if config.sweep.parallel == "auto":
        most = num_gpus // procs if num_gpus else cores // (procs * max(threads, 1))
        parallel = max(1, min(most, num_trials))
    else:
        parallel = min(config.sweep.parallel, num_trials)
        if not num_gpus and parallel * procs > cores:
            LOGGER.warning("%d trials of %d processes at once share %d cores (sweep.parallel)", parallel, procs, cores)
    if num_gpus and parallel * procs > num_gpus:
        raise LaunchError(
            f"sweep.parallel = {parallel} trials of {procs} processes need {parallel * procs} GPUs, but there are "
            f"{num_gpus}; set sweep.parallel={max(1, num_gpus // procs)} or auto"
        )
    share = {"LOKY_MAX_CPU_COUNT": str(max(1, cores // parallel))}  # joblib counts the data loaders' cores
    if not threads and parallel > 1:
        is_all_gpus = config.dist.procs_per_node == "auto" and num_gpus > 0
        num_processes = num_gpus // parallel if is_all_gpus else procs
        share["OMP_NUM_THREADS"] = str(max(1, cores // parallel // num_processes))
    names = _visible(environ, num_gpus)
    each = len(names) // parallel
    gpus = [",".join(names[number * each : (number + 1) * each]) for number in range(parallel)]
    return [Slot(environment={**share, **({"CUDA_VISIBLE_DEVICES": own} if own else {})}) for own in gpus]


def _visible(environ: Mapping[str, str], num_gpus: int) -> list[str]:
    """Names of the GPUs for CUDA_VISIBLE_DEVICES, which a container or a scheduler may have set."""
    given = [name.strip() for name in environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name.strip()]
    return given[:num_gpus] if given else [str(number) for number in range(num_gpus)]
