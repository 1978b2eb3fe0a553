"""What a run folder tells without torch. Whatever is missing in an older or unfinished run is None or empty."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from runner.base.errors import CheckpointError
from runner.base.timeline import read_moment
from runner.base.untrusted import UntrustedFileError, read_bytes
from runner.base.user_paths import refuse_ways_out
from runner.config.saved import read_values
from runner.run.contents import Metrics, StateTold, read_object, read_pointer, read_rows, shown
from runner.run.run_folder import is_alive, read_record

# As in run.json, and what it can't say of itself: `died` says running, but no process is; `damaged` can't be read;
# `queued` waits for SLURM and has no run.json yet.
PastStatus = Literal["running", "completed", "stopped", "failed", "pruned", "died", "damaged", "queued"]


@dataclass(frozen=True, kw_only=True)
class PastRun:
    """A run folder, read."""

    path: Path
    record: dict[str, Any]
    """run.json."""
    config: dict[str, Any]
    """config.yaml, as plain values."""
    rows: tuple[dict[str, Any], ...]
    """metrics.jsonl: one object per finished epoch."""
    evaluation: dict[str, Any] | None
    """evaluation/metrics.json; None where the run was not evaluated in detail."""
    state: dict[str, Any]
    """state.json of the newest checkpoint; empty before the first."""

    @property
    def status(self) -> PastStatus:
        """How the run stands now."""
        return status_of(self.path, self.record)


def read_run(run_dir: Path) -> PastRun:
    """Read a run folder.

    Raises:
        CheckpointError: when the folder is no run folder, or a file of it is damaged.
    """
    refuse_ways_out(run_dir)
    return PastRun(
        path=run_dir,
        record=read_record(run_dir),
        config=read_values(run_dir),
        rows=read_rows(run_dir / "metrics.jsonl"),
        evaluation=_evaluation(run_dir / "evaluation" / "metrics.json"),
        state=_newest_state(run_dir / "checkpoints"),
    )


def status_of(run_dir: Path, record: dict[str, Any]) -> PastStatus:
    """The status that run.json says, or `died` where no process is left that could change it."""
    status: PastStatus = record["status"]
    return "died" if status == "running" and not is_alive(run_dir) else status


def read_small(file: Path) -> bytes | None:
    """A file of a run folder, such as source.patch; None where there is none.

    Raises:
        CheckpointError: when it can't be read.
    """
    try:
        return read_bytes(file)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, UntrustedFileError) as error:
        raise CheckpointError(f"{shown(file)} can't be read: {error}") from error


def elapsed_seconds(run_dir: Path, record: dict[str, Any]) -> float | None:
    """From the first start to the end; until now for a living run, to its last record for one that died."""
    start = read_moment(record.get("start"))
    if start is None:
        return None
    end = read_moment(record.get("end"))
    if end is None and status_of(run_dir, record) == "died":
        files = [run_dir / "run.json", run_dir / "logs" / "rank_0.log"]
        end = datetime.fromtimestamp(max(file.stat().st_mtime for file in files if file.exists()), UTC)
    return max(0.0, ((end or datetime.now(UTC)) - start).total_seconds())


def describe_seconds(seconds: float) -> str:
    """A duration for people: 12 s, 3 min 05 s, 2 h 07 min, 3 d 04 h."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    if whole < 86400:
        return f"{whole // 3600} h {whole % 3600 // 60:02d} min"
    return f"{whole // 86400} d {whole % 86400 // 3600:02d} h"


def describe_metric(metric: str, value: float) -> str:
    """A metric for people: shares in percent, losses as they are."""
    return f"{value:.4f}" if metric.endswith("loss") else f"{value:.2%}"


def _newest_state(checkpoints: Path) -> dict[str, Any]:
    name = read_pointer(checkpoints / "last")
    try:
        return {} if name is None else read_object(checkpoints / name / "state.json", StateTold)
    except FileNotFoundError:
        return {}


def _evaluation(file: Path) -> dict[str, Any] | None:
    try:
        return read_object(file, Metrics)
    except FileNotFoundError:
        return None
