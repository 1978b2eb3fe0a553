"""The folder of a run: its creation, its lock, and run.json, which is rewritten at each change of status."""

from __future__ import annotations

import fcntl
import json
import os
import re
import secrets
import shutil
from collections.abc import Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from runner.base.errors import CheckpointError, OutputError
from runner.base.files import (
    ReservedFile,
    append_line,
    as_json,
    lock_file,
    locked,
    named_write_errors,
    write_atomic,
    write_json,
)
from runner.base.reasons import reason_of
from runner.base.safe_text import mask_credentials_in
from runner.base.timeline import Timeline, new_run_name, parse_moment, to_iso
from runner.run.contents import RunRecord, Status, read_lines, read_object

_NAME_ATTEMPTS = 100
NAMES = ("name", "group", "tags", "notes")
"""Entries of run.json that `runs tag` may change while the run goes on."""
_LOCK_WAIT_SECONDS = 30.0
_JOB_FILE = re.compile(r"([0-9]{1,18})_submitted\.pkl")
_RESERVED_BYTES = 64 << 10  # that the record may grow by: the error, warnings, results


def make_run_folder(output_dir: Path) -> Path:
    """Make a new run folder under `output_dir`.

    Raises:
        OutputError: when the folder can't be made.
    """
    for _ in range(_NAME_ATTEMPTS):
        path = output_dir / new_run_name()
        with named_write_errors(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            try:
                path.mkdir()
            except (FileExistsError, FileNotFoundError):  # another run may have just removed the empty date folder
                continue
            return path.resolve()
    raise OutputError(f"{output_dir}: found no free name for a run folder in {_NAME_ATTEMPTS} attempts")


def remove_unused(run_dir: Path, output_dir: Path) -> None:
    """Remove a new run folder that was not used, and the folders above it that are empty then.

    Args:
        run_dir: the folder.
        output_dir: the folder it was made in, which stays.
    """
    shutil.rmtree(run_dir)
    for parent in run_dir.parents:
        if output_dir.resolve() not in parent.parents or any(parent.iterdir()):
            return
        parent.rmdir()


def check_writable(output_dir: Path, *, key: str = "output_dir") -> None:
    """Check that folders can be created under a folder, which need not exist.

    Args:
        output_dir: the folder.
        key: the config key that names it, for messages.

    Raises:
        OutputError: naming the nearest existing folder, if it is a file or not writable.
    """
    existing = output_dir.absolute()
    while not existing.exists() and existing != existing.parent:
        existing = existing.parent
    if not existing.is_dir():
        raise OutputError(f"{output_dir}: {existing} is a file, not a folder; choose another with {key}=FOLDER")
    probe = existing / f".runner-probe-{secrets.token_hex(4)}"
    try:
        probe.mkdir()
    except OSError as error:
        raise OutputError(
            f"{output_dir}: no folder can be made in {existing} ({reason_of(error)}); choose another with {key}=FOLDER"
        ) from error
    probe.rmdir()


class RunFolder:
    """Paths and record of one run; only the main process writes through it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.record: dict[str, Any] = {}
        self._timeline: Timeline | None = None
        self._reserved: ReservedFile | None = None

    @property
    def is_open(self) -> bool:
        """Whether this process has called :meth:`begin` or :meth:`reopen`."""
        return bool(self.record)

    @property
    def metrics_file(self) -> Path:
        """One JSON object per epoch."""
        return self.path / "metrics.jsonl"

    @property
    def checkpoints(self) -> Path:
        """Folder of checkpoints."""
        return self.path / "checkpoints"

    @property
    def model(self) -> Path:
        """Folder of the packaged model."""
        return self.path / "model"

    def log_file(self, rank: int) -> Path:
        """Log of one process."""
        return self.path / "logs" / f"rank_{rank}.log"

    def write(self, name: str, content: str | bytes) -> None:
        """Write one of the folder's files atomically."""
        write_atomic(self.path / name, content)

    def begin(self, facts: dict[str, Any]) -> None:
        """Create run.json: status `running`, start time, and the given facts."""
        self._timeline = Timeline()
        start = to_iso(self._timeline.now())
        record = {"status": "running", "attempts": 1, **facts, "start": start, "end": None}
        self._reserve(record)
        self.record = {**record, "best": None, "test": None, "error": None}
        with record_lock(self.path):  # from now on there is a lock file, which a full disk could not hold later
            self._save()

    def reopen(self, attempt: dict[str, Any], best: dict[str, Any] | None) -> None:
        """Record that a run is resumed: one more attempt with the given facts, and the best epoch so far."""
        record = read_record(self.path)
        self._reserve(record)
        self.record = record
        self._timeline = Timeline(_moments_in(record))
        number = record["attempts"] + 1
        start = to_iso(self._timeline.now())
        resumes = [*record.get("resumes", []), {"attempt": number, "start": start, **attempt}]
        self.update(status="running", attempts=number, resumes=resumes, best=best, test=None, end=None, error=None)

    def truncate_metrics(self, num_epochs: int) -> None:
        """Remove the rows after the first epochs; those epochs will be trained, or at least evaluated, again."""
        if self.metrics_file.is_file():
            # A last line that a kill cut short belongs to an epoch that was not saved.
            kept = [line for row, line in read_lines(self.metrics_file) if row["epoch"] <= num_epochs]
            write_atomic(self.metrics_file, "".join(kept))

    def clean(self) -> None:
        """Remove the temporary files of a killed attempt."""
        for left_over in self.path.glob(".*.tmp"):
            shutil.rmtree(left_over) if left_over.is_dir() else left_over.unlink()

    def update(self, **facts: Any) -> None:  # noqa: ANN401 - whatever JSON can hold
        """Change facts of the record."""
        with record_lock(self.path):
            self.record |= self._present_names() | facts
            self._save()

    def record_damage(self, damage: dict[str, Any], **facts: Any) -> None:  # noqa: ANN401 - whatever JSON can hold
        """Record that a checkpoint was found damaged, along with other facts that change by it."""
        self.update(damaged=[*self.record.get("damaged", []), damage], **facts)

    def end(self, status: Status, error: dict[str, Any] | None = None) -> None:
        """Record how the run ended; on a full disk in the space that :meth:`begin` or :meth:`reopen` has reserved."""
        timeline = self._timeline or Timeline(_moments_in(self.record))
        with record_lock(self.path):
            ended = {"status": status, "end": to_iso(timeline.now()), "error": error}
            self.record |= self._present_names() | ended
            if self._reserved is None:
                self._save()
                return
            reserved, self._reserved = self._reserved, None
            reserved.replace_file(as_json(mask_credentials_in(self.record)))

    def _present_names(self) -> dict[str, Any]:
        """The names in run.json now, which `runs tag` may have changed since this process wrote it."""
        try:
            present = read_record(self.path)
        except CheckpointError:  # damaged by others, and about to be written anew
            return {}
        return {key: present[key] for key in NAMES if key in present}

    def append_metrics(self, row: dict[str, Any]) -> None:
        """Add the metrics of one epoch."""
        append_line(self.metrics_file, json.dumps(row, allow_nan=False))

    def _reserve(self, record: dict[str, Any]) -> None:
        # A full disk ends the run, and a new file that says so could not be written then.
        self._reserved = ReservedFile(self.path / "run.json", len(as_json(record)) + _RESERVED_BYTES)

    def _save(self) -> None:
        write_json(self.path / "run.json", mask_credentials_in(self.record))

    @contextmanager
    def hold(self) -> Iterator[None]:
        """Hold the run's lock; the system releases it when the process dies, so :func:`is_alive` is right after a kill.

        Raises:
            OutputError: when another live process holds it.
        """
        with ExitStack() as stack:
            with named_write_errors(self.path):  # not around the `yield`: errors of the training have their own names
                file = stack.enter_context(self.log_file(0).open("ab"))
                try:
                    lock_file(file, fcntl.LOCK_EX | fcntl.LOCK_NB, self.path)
                except BlockingIOError as error:
                    raise OutputError(f"{self.path}: another process is working on this run") from error
            held = [file.fileno()]
            # A loader process that outlives this process must not hold the lock.
            os.register_at_fork(after_in_child=lambda: [*map(os.close, held)])
            try:
                yield
            finally:
                held.clear()


@contextmanager
def record_lock(run_dir: Path) -> Iterator[None]:
    """Hold the lock of run.json, which each process takes that changes the file.

    Raises:
        OutputError: another process holds it for long, or the folder can't be written.
    """
    try:
        with locked(run_dir / "logs" / "run.json.lock", wait_seconds=_LOCK_WAIT_SECONDS):
            yield
    except BlockingIOError as error:
        raise OutputError(f"{run_dir}: another process has held the lock of run.json for long; try again") from error


def rename_run(run_dir: Path, *, tags: Mapping[str, Any], removed: Collection[str] = (), **names: str | None) -> None:
    """Change name, group or notes of a run in run.json, and its tags; also while the run goes on.

    Args:
        run_dir: the run folder.
        tags: to add or replace.
        removed: names of tags to remove.
        names: by their entry in run.json: name, group, notes; None removes one.

    Raises:
        CheckpointError: the folder is no run folder, or its record is damaged.
        OutputError: the folder can't be written.
    """
    read_record(run_dir)  # no lock file in a folder that is none
    with record_lock(run_dir):
        record = read_record(run_dir)
        kept = {key: value for key, value in (record.get("tags") or {}).items() if key not in removed}
        write_json(run_dir / "run.json", mask_credentials_in({**record, **names, "tags": {**kept, **tags}}))


def read_record(run_dir: Path) -> dict[str, Any]:
    """The record of a run.

    Raises:
        CheckpointError: when the folder is no run folder or its record is damaged.
    """
    file = run_dir / "run.json"
    try:
        return read_object(file, RunRecord)
    except FileNotFoundError as error:
        raise CheckpointError(f"{run_dir} is no run folder: it has no run.json") from error


def _moments_in(record: dict[str, Any]) -> list[datetime]:
    """All points in time in a record."""
    texts = [record.get("start"), record.get("end"), *(attempt.get("start") for attempt in record.get("resumes", []))]
    return [moment for moment in map(parse_moment, texts) if moment is not None]


def finished_epochs(run_dir: Path) -> int:
    """The number of finished epochs in the name of the newest checkpoint; 0 without one."""
    found = [path.name.partition("-")[0] for path in run_dir.glob("checkpoints/*-*") if path.is_dir()]
    return max((int(epochs) for epochs in found if epochs.isdecimal()), default=0)


def is_alive(run_dir: Path) -> bool:
    """Whether a process holds the run's lock; run.json says `running` also after a kill."""
    try:
        with (run_dir / "logs" / "rank_0.log").open("rb") as file:
            lock_file(file, fcntl.LOCK_SH | fcntl.LOCK_NB, run_dir)
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    return False


def is_waiting(run_dir: Path) -> bool:
    """Whether a run was prepared but never began, such as one in SLURM's queue."""
    return (run_dir / "config.yaml").is_file() and not (run_dir / "run.json").exists()


def timestamp() -> str:
    """Now, in UTC, as ISO 8601 with seconds."""
    return to_iso(datetime.now(UTC))


def submitted_jobs(run_dir: Path) -> set[str]:
    """Numbers of all SLURM jobs that were ever submitted for a run, from the names of submitit's pickle files.

    submitit renames the file after the job once that is in the queue. If this process is killed before, the job waits
    for the file in vain and ends by itself.
    """
    found = (_JOB_FILE.fullmatch(file.name) for file in (run_dir / "logs").glob("*_submitted.pkl"))
    return {match[1] for match in found if match}


def summary_of_experiment(model: dict[str, Any], data: dict[str, Any]) -> dict[str, Any]:
    """The entry `experiment` of run.json: the names of model and data, and the folder of the user's data."""
    source = data.get("source")
    is_users = source in ("folder", "csv")
    name = data.get("name") if source == "torchvision" else source
    found = {
        "model": model.get("name"),
        "data": name,
        "data_root": (data.get("root") or data.get("train")) if is_users else None,
    }
    # A saved config may hold anything.
    return {key: value if value is None else str(value) for key, value in found.items()}
