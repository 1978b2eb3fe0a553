"""Starts the processes of trials, asks them to stop, and says how each ended."""

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
from runner.launch.plan import count_gpus
from runner.run.contents import Contents, Failure, Job, read_object
from runner.run.run_folder import submitted_jobs
from runner.tools.sweep.folder import SweepFolder, Trial
from runner.tools.sweep.trial import ERROR_FILE, JOB_FILE, LOG_FILE, MAY_NOT_DOWNLOAD

_SECONDS_TO_ANSWER = 60
# Each imports torch and looks at the data: more at once would be too much for a login node, and no faster.
_MOST_SUBMITTING = 4


@dataclass(frozen=True, kw_only=True)
class End:
    """How the process of a trial ended."""

    trial: Trial
    is_stopped: bool
    """Whether it stopped on request, with everything saved."""
    failure: dict[str, Any] | None
    """Name and message of the error, where it failed."""
    job_id: str | None
    """Where it only handed the trial to SLURM: the job."""


@dataclass(kw_only=True)
class _Running:
    trial: Trial
    process: subprocess.Popen[bytes]
    slot: Slot
    is_asked_to_stop: bool = False


@dataclass(kw_only=True)
class Pool:
    """The processes of the trials that run now; only for one thread, with which they die on Linux."""

    folder: SweepFolder
    slots: Sequence[Slot]
    may_download: bool = True
    """Whether the trials may download the weights that they name."""
    _running: list[_Running] = field(default_factory=list)

    @property
    def running(self) -> list[Trial]:
        """The trials that have a process."""
        return [item.trial for item in self._running]

    @property
    def has_room(self) -> bool:
        """Whether another trial can be started."""
        return len(self._running) < len(self.slots)

    def start(self, trial: Trial) -> None:
        """Start a trial in a free slot, in a session of its own: a Ctrl-C at the terminal is for the sweep."""
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

    def ended(self) -> Iterator[End]:
        """The trials whose processes have ended since the last call."""
        for item in list(self._running):
            code = item.process.poll()
            if code is not None:
                self._running.remove(item)
                yield self._end(item, code)

    def ask_to_stop(self) -> None:
        """Ask all trials to save and stop; once each, since a second request might be taken for impatience."""
        for item in self._running:
            if not item.is_asked_to_stop:
                item.is_asked_to_stop = True
                item.process.send_signal(signal.SIGTERM)

    @contextmanager
    def killed_in_the_end(self) -> Iterator[None]:
        """Leave no process behind, however the block ends."""
        try:
            yield
        finally:
            for item in self._running:
                os.killpg(item.process.pid, signal.SIGKILL)
                item.process.wait()

    def _end(self, item: _Running, code: int) -> End:
        run_dir = self.folder.run_dir(item.trial)
        # One that was asked before it could listen ended by the signal itself; there was nothing to save yet.
        is_stopped = code == EXIT_STOPPED or (item.is_asked_to_stop and code == -signal.SIGTERM)
        is_good = code == EXIT_DONE or is_stopped
        job = _read(run_dir / JOB_FILE, Job)
        failure = None if is_good else _read(run_dir / ERROR_FILE, Failure) or _without_words(code, run_dir / LOG_FILE)
        return End(trial=item.trial, is_stopped=is_stopped, failure=failure, job_id=job.get("job_id"))


def _read(file: Path, rules: type[Contents]) -> dict[str, Any]:
    try:
        return read_object(file, rules)
    except FileNotFoundError:
        return {}


def _without_words(code: int, log: Path) -> dict[str, Any]:
    if code >= 0:
        return {"name": "TrialCrashed", "message": f"its process ended with exit code {code}; its log: {log}"}
    name = signal.Signals(-code).name
    why = "; the system may have run out of memory" if name == "SIGKILL" else ""
    return {"name": "TrialCrashed", "message": f"its process was killed by {name}{why}; its log: {log}"}


def adopt(folder: SweepFolder, trials: Iterable[Trial]) -> None:
    """Take up the jobs that were submitted just before the sweep was killed, and so are not in its records."""
    for trial in trials:
        newest = max(_jobs_of(trial, folder.run_dir(trial)), key=int, default=None)
        if newest != trial.job_id:
            trial.job_id = newest
            folder.save(trial)


def _jobs_of(trial: Trial, run_dir: Path) -> set[str]:
    jobs = submitted_jobs(run_dir)
    if trial.job_id is not None:
        jobs.add(trial.job_id)
    with suppress(FileNotFoundError):  # it was not submitted
        jobs.add(read_object(run_dir / JOB_FILE, Job)["job_id"])
    return jobs


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


@dataclass(frozen=True, kw_only=True)
class Slot:
    """A share of this machine that one trial at a time has."""

    environment: Mapping[str, str]
    """Variables of its processes besides those of the sweep."""


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
        config: of a trial.
        num_trials: more slots than trials are of no use.
        environ: variables of the sweep.
        num_gpus: GPUs that the sweep may use; by default those that torch sees, unless the trial is to use the CPU.
        num_cores: cores that it may use; by default what affinity and the limits of a container leave.

    Raises:
        LaunchError: when sweep.parallel asks for more than there are GPUs.
    """
    if config.dist.launcher == "submitted":
        submitting = _MOST_SUBMITTING if config.sweep.parallel == "auto" else config.sweep.parallel
        return [Slot(environment={})] * min(submitting, num_trials)
    if num_gpus is None:
        num_gpus = 0 if config.trainer.device in ("cpu", "mps") else count_gpus()
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
    share = {"LOKY_MAX_CPU_COUNT": str(max(1, cores // parallel))}  # asked by joblib, which counts the loaders' cores
    if not threads and parallel > 1:
        is_all_gpus = config.dist.procs_per_node == "auto" and num_gpus > 0
        num_processes = num_gpus // parallel if is_all_gpus else procs
        share["OMP_NUM_THREADS"] = str(max(1, cores // parallel // num_processes))
    gpus = _split(_visible(environ, num_gpus), parallel)
    return [Slot(environment={**share, **({"CUDA_VISIBLE_DEVICES": ",".join(own)} if own else {})}) for own in gpus]


def _visible(environ: Mapping[str, str], num_gpus: int) -> list[str]:
    """Names of the GPUs, as CUDA knows them: a container or a scheduler may have left only some of them."""
    given = [name.strip() for name in environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name.strip()]
    return given[:num_gpus] if given else [str(number) for number in range(num_gpus)]


def _split(names: Sequence[str], num_shares: int) -> list[Sequence[str]]:
    size = len(names) // num_shares
    return [names[number * size : (number + 1) * size] for number in range(num_shares)]
