"""The folder of one run: made once, exclusively; run.json is kept true at each moment."""

from __future__ import annotations

import fcntl
import json
import os
import re
import secrets
import shutil
from collections.abc import Iterator
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
    named_write_errors,
    write_atomic,
    write_json,
)
from runner.base.safe_text import masked_values
from runner.base.timeline import Timeline, new_name, read_moment, written
from runner.run.contents import RunRecord, Status, read_lines, read_object

_NAME_ATTEMPTS = 100
_JOB_FILE = re.compile(r"([0-9]{1,18})_submitted\.pkl")
_ROOM_FOR_THE_END = 64 << 10  # bytes that the record may grow by: the error, warnings, results


def make_new(output_dir: Path) -> Path:
    """Make a new run folder under `output_dir`.

    Raises:
        OutputError: when the folder can't be made.
    """
    for _ in range(_NAME_ATTEMPTS):
        path = output_dir / new_name()
        with named_write_errors(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            try:
                path.mkdir()
            except (FileExistsError, FileNotFoundError):  # or another run has just taken the empty date folder away
                continue
            return path.resolve()
    raise OutputError(f"{output_dir}: found no free name for a run folder in {_NAME_ATTEMPTS} attempts")


def unmake(run_dir: Path, output_dir: Path) -> None:
    """Take away a new run folder in which nothing has begun, and the folders above it that hold nothing else.

    Args:
        run_dir: the folder.
        output_dir: where it was made; this one stays.
    """
    shutil.rmtree(run_dir)
    for parent in run_dir.parents:
        if output_dir.resolve() not in parent.parents or any(parent.iterdir()):
            return
        parent.rmdir()


def check_writable(output_dir: Path, *, key: str = "output_dir") -> None:
    """Refuse early where folders can't be made; leaves nothing behind.

    Args:
        output_dir: under which they are to be made.
        key: what names it, for messages.

    Raises:
        OutputError: naming the nearest existing folder that is in the way.
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
            f"{output_dir}: no folder can be made in {existing} ({error.strerror}); choose another with {key}=FOLDER"
        ) from error
    probe.rmdir()


class RunFolder:
    """Paths and records of one run; only the process that owns the run writes through it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.record: dict[str, Any] = {}
        self._timeline: Timeline | None = None
        self._room_for_the_end: ReservedFile | None = None

    @property
    def is_open(self) -> bool:
        """Whether this process has recorded that the run begins or goes on."""
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
        """Write one of the folder's files as a whole."""
        write_atomic(self.path / name, content)

    def begin(self, facts: dict[str, Any]) -> None:
        """Record that a run starts: status `running`, start time, and whatever explains the run."""
        self._timeline = Timeline()
        start = written(self._timeline.now())
        record = {"status": "running", "attempts": 1, **facts, "start": start, "end": None}
        self._reserve(record)
        self.record = {**record, "best": None, "test": None, "error": None}
        self._save()

    def reopen(self, attempt: dict[str, Any], best: dict[str, Any] | None) -> None:
        """Record that a run goes on: one more attempt, with what was typed for it, and the best it goes on with."""
        record = read_record(self.path)
        self._reserve(record)
        self.record = record
        self._timeline = Timeline(_moments_in(record))
        number = record["attempts"] + 1
        start = written(self._timeline.now())
        resumes = [*record.get("resumes", []), {"attempt": number, "start": start, **attempt}]
        self.update(status="running", attempts=number, resumes=resumes, best=best, test=None, end=None, error=None)

    def cut_metrics(self, num_epochs: int) -> None:
        """Keep the rows of the first epochs; later ones are trained, or at least evaluated, again."""
        if self.metrics_file.is_file():
            # A line that a kill cut short is of an epoch that was not saved.
            kept = [line for row, line in read_lines(self.metrics_file) if row["epoch"] <= num_epochs]
            write_atomic(self.metrics_file, "".join(kept))

    def clean(self) -> None:
        """Remove what a killed attempt has left half-written."""
        for left_over in self.path.glob(".*.tmp"):
            shutil.rmtree(left_over) if left_over.is_dir() else left_over.unlink()

    def update(self, **facts: Any) -> None:  # noqa: ANN401 - whatever JSON can hold
        """Change facts of the record."""
        self.record |= facts
        self._save()

    def tell_damage(self, damage: dict[str, Any], **facts: Any) -> None:  # noqa: ANN401 - whatever JSON can hold
        """Record that a checkpoint was found damaged, along with other facts that change by it."""
        self.update(damaged=[*self.record.get("damaged", []), damage], **facts)

    def end(self, status: Status, error: dict[str, Any] | None = None) -> None:
        """Record how the run ended; on a full disk too, where this process has recorded its begin."""
        timeline = self._timeline or Timeline(_moments_in(self.record))
        self.record |= {"status": status, "end": written(timeline.now()), "error": error}
        if self._room_for_the_end is None:
            self._save()
            return
        room, self._room_for_the_end = self._room_for_the_end, None
        room.become(as_json(masked_values(self.record)))

    def append_metrics(self, row: dict[str, Any]) -> None:
        """Add the metrics of one epoch."""
        append_line(self.metrics_file, json.dumps(row, allow_nan=False))

    def _reserve(self, record: dict[str, Any]) -> None:
        # A disk that fills up ends the run, and no new file could say so.
        num_bytes = len(as_json(record)) + _ROOM_FOR_THE_END
        self._room_for_the_end = ReservedFile(self.path / "run.json", num_bytes)

    def _save(self) -> None:
        write_json(self.path / "run.json", masked_values(self.record))

    @contextmanager
    def hold(self) -> Iterator[None]:
        """Hold the run for as long as this process lives, so that others can tell a dead run from a live one.

        Raises:
            OutputError: when another live process holds it.
        """
        with ExitStack() as stack:
            with named_write_errors(self.path):  # what fails while it is held has other names
                file = stack.enter_context(self.log_file(0).open("ab"))
                try:
                    lock_file(file, fcntl.LOCK_EX | fcntl.LOCK_NB, self.path)
                except BlockingIOError as error:
                    raise OutputError(f"{self.path}: another process is working on this run") from error
            held = [file.fileno()]

            def let_go() -> None:
                for descriptor in held:
                    os.close(descriptor)

            # A data-loading worker that outlives this process must not keep the run looking alive.
            os.register_at_fork(after_in_child=let_go)
            try:
                yield
            finally:
                held.clear()


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
    """All moments that a record tells of."""
    told = [record.get("start"), record.get("end"), *(attempt.get("start") for attempt in record.get("resumes", []))]
    return [moment for moment in map(read_moment, told) if moment is not None]


def finished_epochs(run_dir: Path) -> int:
    """How many epochs a run has finished and saved: what its newest checkpoint says, 0 before the first."""
    found = [path.name.partition("-")[0] for path in run_dir.glob("checkpoints/*-*") if path.is_dir()]
    return max((int(epochs) for epochs in found if epochs.isdecimal()), default=0)


def is_alive(run_dir: Path) -> bool:
    """Whether a living process is working on the run; a record that says `running` may be of a dead one."""
    try:
        with (run_dir / "logs" / "rank_0.log").open("rb") as file:
            lock_file(file, fcntl.LOCK_SH | fcntl.LOCK_NB, run_dir)
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    return False


def is_waiting(run_dir: Path) -> bool:
    """Whether a run is prepared but has never begun, such as one in SLURM's queue."""
    return (run_dir / "config.yaml").is_file() and not (run_dir / "run.json").exists()


def timestamp() -> str:
    """Now, in UTC, as ISO 8601 with seconds."""
    return written(datetime.now(UTC))


def submitted_jobs(run_dir: Path) -> set[str]:
    """Numbers of all of SLURM's jobs that were ever submitted for a run.

    Told by what they are to do, which submitit names after the job once it is in the queue: without it (this process
    was killed just then) a job ends by itself when it has waited for it in vain.
    """
    found = (_JOB_FILE.fullmatch(file.name) for file in (run_dir / "logs").glob("*_submitted.pkl"))
    return {match[1] for match in found if match}


def summary_of_experiment(model: dict[str, Any], data: dict[str, Any]) -> dict[str, Any]:
    """What a run is about, in three words, out of its config."""
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
