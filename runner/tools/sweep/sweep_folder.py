"""The folder of a sweep: the command, one small record per trial, and how far each trial is.

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
from collections.abc import Iterable, Iterator, Sequence
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
"""What a sweep writes into its folder, apart from files that Hydra's own sweeper writes too."""
_FORMAT = 1
_NUMBER = re.compile(r"[0-9]{1,9}")

Status = Literal["waiting", "submitted", "running", "stopped", "completed", "pruned", "failed"]
READ_OF_TRIALS = ("run.json", "metrics.jsonl", "logs/rank_0.log")
"""Files of a run folder from which a :class:`TrialOutcome` is read."""
_EMA = {"val_top1": "val_ema_top1", "val_top5": "val_ema_top5", "val_loss": "val_ema_loss"}


@dataclass(kw_only=True)
class Trial:
    """One trial, as its record holds it."""

    number: int
    """Its run folder is SWEEP/<number>."""
    identity: str
    """Hash of the values of its config that affect the result."""
    values: dict[str, str]
    """The keys that vary, with their values as they would be typed."""
    overrides: list[str]
    """The overrides that train it alone."""
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
    experiments: list[str] = field(default_factory=list)
    """The files of the experiments in its config, for its log."""


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
    experiments: list[str] = Field(default_factory=list)


class SweepFolder:
    """Paths and records of one sweep; only the process that holds its lock writes."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def log_file(self) -> Path:
        """The log of the sweep, in a folder that is made."""
        (self.path / "logs").mkdir(exist_ok=True)
        return self.path / "logs" / "sweep.log"

    @property
    def journal(self) -> Path:
        """Optuna's storage, unless sweep.storage names another."""
        return self.path / "journal.log"

    def run_dir(self, trial: Trial) -> Path:
        """The run folder of a trial."""
        return self.path / str(trial.number)

    def begin(self, facts: dict[str, Any]) -> None:
        """Write sweep.json."""
        with named_write_errors(self.path):
            (self.path / "trials").mkdir(exist_ok=True)
            (self.path / "logs").mkdir(exist_ok=True)
        write_json(self.path / "sweep.json", {"format": _FORMAT, **facts})

    def record(self) -> dict[str, Any]:
        """The content of sweep.json.

        Raises:
            OutputError: this is no folder of a sweep, or a damaged one.
        """
        file = self.path / "sweep.json"
        if _read(file, Contents).get("format") != _FORMAT:
            raise OutputError(f"{file} is of another version of the runner, or no record of a sweep")
        return _read(file, _SweepRecord)

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
        """Lock the sweep; the lock of a process that dies is released.

        Raises:
            OutputError: another process holds the lock.
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
        """Lock the leaderboard, waiting for other processes: trials are read under the lock, so that none is missed."""
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
class TrialOutcome:
    """How far a trial is, and how good."""

    trial: Trial
    status: Status
    values: tuple[float, ...] | None
    """The best value of each metric over the epochs so far; None before the first."""
    num_epochs: int
    """Finished epochs."""
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
) -> TrialOutcome:
    """How far a trial is."""
    run_dir = folder.run_dir(trial)
    rows = epochs_of(run_dir)
    status, error = _status(trial, run_dir)
    values = [
        _best((value_of(row, metric, direction) for row in rows), direction)
        for metric, direction in zip(metrics, directions, strict=True)
    ]
    return TrialOutcome(
        trial=trial,
        status=status,
        values=tuple(value for value in values if value is not None) if None not in values else None,
        num_epochs=len(rows),
        seconds=sum(row.get("epoch_seconds", 0.0) for row in rows),
        error=error,
    )


def epochs_of(run_dir: Path) -> list[dict[str, Any]]:
    """The metrics of each finished epoch; a last line that is cut off by a kill is left out.

    Raises:
        OutputError: when the file is damaged.
    """
    try:
        return list(read_rows(run_dir / "metrics.jsonl"))
    except CheckpointError as error:
        raise OutputError(str(error)) from error


def value_of(row: dict[str, Any], metric: Metric, direction: Direction) -> float | None:
    """A metric of one epoch: of the raw or of the averaged weights, whichever is better; None where it has none."""
    return _best((row.get(key) for key in (metric, _EMA.get(metric)) if key is not None), direction)


def _best(values: Iterable[float | None], direction: Direction) -> float | None:
    known = [float(value) for value in values if value is not None]
    return (max if direction == "maximize" else min)(known, default=None)


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
        error = record.get("error") or {"name": "unknown", "message": "no error was recorded"}
        return "failed", f"{error['name']}: {error['message']}"
    return "stopped", None  # on request, or killed along with the sweep


def _record(run_dir: Path) -> dict[str, Any]:
    try:
        return read_object(run_dir / "run.json", RunRecord)
    except FileNotFoundError:
        return {}
    except CheckpointError as error:
        raise OutputError(str(error)) from error
