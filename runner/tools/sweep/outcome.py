"""How far a trial is: read from its run folder, whoever trains it and on whichever machine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from runner.base.errors import CheckpointError, OutputError
from runner.config.schema.sweep import Direction, Metric
from runner.run.contents import RunRecord, read_object, read_rows
from runner.run.run_folder import is_alive
from runner.tools.sweep.folder import SweepFolder, Trial

Status = Literal["waiting", "submitted", "running", "stopped", "completed", "pruned", "failed"]
READ_OF_TRIALS = ("run.json", "metrics.jsonl", "logs/rank_0.log")
"""Files of a run folder that tell how far a trial is."""
_EMA = {"val_top1": "val_ema_top1", "val_top5": "val_ema_top5", "val_loss": "val_ema_loss"}


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
