"""Starts the processes of trials, asks them to stop, and says how each ended."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from runner.base.errors import EXIT_DONE, EXIT_STOPPED
from runner.base.files import named_write_errors
from runner.run.contents import Contents, Failure, Job, read_object
from runner.tools.sweep.folder import SweepFolder, Trial
from runner.tools.sweep.jobs import JOB_FILE
from runner.tools.sweep.slots import Slot
from runner.tools.sweep.trial import ERROR_FILE, LOG_FILE, MAY_NOT_DOWNLOAD


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
