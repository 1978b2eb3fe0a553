"""The folder of a sweep: what was asked for, and one small record per trial, each written as a whole.

sweep.json           the command, its arguments and folder, metrics and directions
multirun.yaml        the composed config of the sweep, as Hydra's own sweeper leaves it
trials/<n>.json      what trial n is
<n>/                 the run folder of trial n
journal.log          Optuna's file, where a search or a policy uses it
leaderboard.csv, leaderboard.json, best.yaml, logs/sweep.log
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, model_validator

from runner.base.errors import CheckpointError, OutputError
from runner.base.files import locked, named_write_errors, write_json
from runner.config.schema.sweep import Direction, Metric
from runner.run.contents import Contents, Count, Failure, JobId, RunRecord, read_object, read_rows
from runner.run.run_folder import is_alive

WRITTEN_FILES = ("leaderboard.csv", "leaderboard.json", "best.yaml", "journal.log", "trials")
"""What a sweep writes into its folder, besides what Hydra writes too."""
_FORMAT = 1
_NUMBER = re.compile(r"[0-9]{1,9}")


Status = Literal["waiting", "submitted", "running", "stopped", "completed", "pruned", "failed"]
READ_OF_TRIALS = ("run.json", "metrics.jsonl", "logs/rank_0.log")
"""Files of a run folder that tell how far a trial is."""
_EMA = {"val_top1": "val_ema_top1", "val_top5": "val_ema_top5", "val_loss": "val_ema_loss"}


@dataclass(kw_only=True)
class Trial:
    """One trial, as its record holds it."""

    number: int
    """Its run folder is SWEEP/<number>."""
    identity: str
    """Hash of what decides about its result."""
    values: dict[str, str]
    """The keys that vary, with their values as they would be typed."""
    overrides: list[str]
    """What would be typed to train it alone."""
    config: dict[str, Any]
    """Its complete config."""
    study_number: int | None = None
    """Its number in Optuna's study, where it has one."""
    same_as: int | None = None
    """The trial that a search proposed before with the same config; this one is not trained."""
    failures: list[dict[str, Any]] = field(default_factory=list)
    """How its processes failed so far: name and message of each error."""
    job_id: str | None = None
    """Number of SLURM's job, where it was submitted."""


class _SweepRecord(Contents):
    format: int
    start: str
    argv: list[str]
    cwd: str
    metrics: Annotated[list[Metric], Field(min_length=1)]
    directions: list[Direction]

    @model_validator(mode="after")
    def _one_direction_each(self) -> _SweepRecord:
        if len(self.directions) != len(self.metrics):
            raise ValueError(f"{len(self.metrics)} metrics, but {len(self.directions)} directions")
        return self


class _TrialRecord(Contents):
    model_config = ConfigDict(extra="forbid")

    number: Count
    identity: str
    values: dict[str, str]
    overrides: list[str]
    config: dict[str, Any]
    study_number: Count | None = None
    same_as: Count | None = None
    failures: list[Failure] = Field(default_factory=list)
    job_id: JobId | None = None


class SweepFolder:
    """Paths and records of one sweep; only the process that holds it writes."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def record_file(self) -> Path:
        """What was asked for."""
        return self.path / "sweep.json"

    @property
    def journal(self) -> Path:
        """Optuna's storage, unless sweep.storage names another."""
        return self.path / "journal.log"

    def run_dir(self, trial: Trial) -> Path:
        """The run folder of a trial."""
        return self.path / str(trial.number)

    def begin(self, facts: dict[str, Any]) -> None:
        """Record what was asked for."""
        with named_write_errors(self.path):
            (self.path / "trials").mkdir(exist_ok=True)
            (self.path / "logs").mkdir(exist_ok=True)
        write_json(self.record_file, {"format": _FORMAT, **facts})

    def record(self) -> dict[str, Any]:
        """What was asked for.

        Raises:
            OutputError: when this is no folder of a sweep, or a damaged one.
        """
        found = _read(self.record_file, Contents)
        if found.get("format") != _FORMAT:
            raise OutputError(f"{self.record_file} is of another version of the runner, or no record of a sweep")
        return _read(self.record_file, _SweepRecord)

    def save(self, trial: Trial) -> None:
        """Write the record of a trial."""
        write_json(self.path / "trials" / f"{trial.number}.json", asdict(trial))

    def trials(self) -> list[Trial]:
        """All trials by number.

        Raises:
            OutputError: when a record is damaged.
        """
        found = (file for file in (self.path / "trials").glob("*.json") if _NUMBER.fullmatch(file.stem))
        trials = [load_trial(file) for file in sorted(found, key=lambda file: int(file.stem))]
        originals = {trial.number for trial in trials if trial.same_as is None}
        for trial in trials:
            if trial.same_as is not None and trial.same_as not in originals:
                raise OutputError(
                    f"{self.path}/trials/{trial.number}.json is damaged: there is no trial {trial.same_as}"
                )
        return trials

    @contextmanager
    def hold(self) -> Iterator[None]:
        """Hold the sweep for as long as this process lives: a dead one holds nothing.

        Raises:
            OutputError: when another process works on it, or the folder is of something else.
        """
        with ExitStack() as stack:
            try:
                stack.enter_context(locked(self.path / ".lock"))
            except BlockingIOError as error:
                raise OutputError(
                    f"{self.path}: another process is working on this sweep; wait for it, stop it, or choose another "
                    "sweep.dir"
                ) from error
            yield

    @contextmanager
    def hold_leaderboard(self) -> Iterator[None]:
        """Wait until nobody else reads the trials to write the leaderboard: whoever writes last knows of all."""
        with locked(self.path / ".leaderboard.lock", wait_seconds=math.inf):
            yield


def load_trial(file: Path) -> Trial:
    """The trial of a record.

    Raises:
        OutputError: when it is damaged.
    """
    try:
        trial = Trial(**_read(file, _TrialRecord))
    except OutputError as error:
        raise OutputError(f"{error}; remove it, and the trial is run anew") from error
    if str(trial.number) != file.stem:
        raise OutputError(f"{file} is damaged: it is of trial {trial.number}; remove it, and the trial is run anew")
    return trial


def is_sweep(path: Path) -> bool:
    """Whether a folder is one of a sweep of ours."""
    return (path / "sweep.json").is_file()


def _read(file: Path, rules: type[Contents]) -> dict[str, Any]:
    try:
        return read_object(file, rules)
    except FileNotFoundError as error:
        raise OutputError(f"{file.parent} is no folder of a sweep: it has no {file.name}") from error
    except CheckpointError as error:
        raise OutputError(str(error)) from error


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """How far a trial is."""

    trial: Trial
    status: Status
    values: tuple[float, ...] | None
    """The best value of each metric over the epochs so far; None before the first."""
    num_epochs: int
    """Epochs that are evaluated."""
    seconds: float
    """Seconds of training and evaluation, over all attempts."""
    error: str | None
    """`NAME: message` of a failed trial."""

    @property
    def is_over(self) -> bool:
        """Whether it needs no further training."""
        return self.status in ("completed", "pruned")


def outcome_of(
    trial: Trial, folder: SweepFolder, metrics: Sequence[Metric], directions: Sequence[Direction]
) -> Outcome:
    """How far a trial is."""
    run_dir = folder.run_dir(trial)
    rows = epochs_of(run_dir)
    status, error = _status(trial, run_dir)
    values = [_best(rows, metric, direction) for metric, direction in zip(metrics, directions, strict=True)]
    return Outcome(
        trial=trial,
        status=status,
        values=tuple(value for value in values if value is not None) if None not in values else None,
        num_epochs=len(rows),
        seconds=sum(row.get("epoch_seconds", 0.0) for row in rows),
        error=error,
    )


def epochs_of(run_dir: Path) -> list[dict[str, Any]]:
    """The metrics of each finished epoch; a line that a kill cut short is of none.

    Raises:
        OutputError: when the file is damaged.
    """
    try:
        return list(read_rows(run_dir / "metrics.jsonl"))
    except CheckpointError as error:
        raise OutputError(str(error)) from error


def value_of(row: dict[str, Any], metric: Metric, direction: Direction) -> float | None:
    """The value of a metric in an epoch: of the raw weights or of their average, whichever is better."""
    found = [float(row[key]) for key in (metric, _EMA.get(metric)) if key is not None and row.get(key) is not None]
    if not found:
        return None
    return max(found) if direction == "maximize" else min(found)


def _best(rows: Sequence[dict[str, Any]], metric: Metric, direction: Direction) -> float | None:
    found = [value for row in rows if (value := value_of(row, metric, direction)) is not None]
    if not found:
        return None
    return max(found) if direction == "maximize" else min(found)


def _status(trial: Trial, run_dir: Path) -> tuple[Status, str | None]:
    record = _record(run_dir)
    if record.get("status") in ("completed", "pruned"):
        return record["status"], None
    if is_alive(run_dir):
        return "running", None
    if trial.failures:
        failure = trial.failures[-1]
        return "failed", f"{failure['name']}: {failure['message']}"
    if not record:
        return ("submitted" if trial.job_id else "waiting"), None
    if record.get("status") == "failed":
        error = record.get("error") or {"name": "unknown", "message": "it left no word"}
        return "failed", f"{error['name']}: {error['message']}"
    return "stopped", None  # it has stopped itself, or was killed along with the sweep


def _record(run_dir: Path) -> dict[str, Any]:
    try:
        return read_object(run_dir / "run.json", RunRecord)
    except FileNotFoundError:
        return {}
    except CheckpointError as error:
        raise OutputError(str(error)) from error
