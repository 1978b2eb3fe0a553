"""Finds run folders, and sums each up in one line. Made for thousands: reads one small file of each."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from runner.base.errors import RunnerError
from runner.base.user_paths import refuse_ways_out_at
from runner.config.saved import read_values
from runner.run.run_folder import read_record, summary_of_experiment
from runner.tools.runs.past import PastStatus, elapsed_seconds, status_of

# What a line is made of.
_READ = ("run.json", "config.yaml", "logs/rank_0.log")


@dataclass(frozen=True, kw_only=True)
class Line:
    """One run of a list."""

    folder: Path
    model: str | None
    data: str | None
    """The kind of data, and its folder where the user chose one."""
    best: dict[str, Any] | None
    """Metric, value and epoch; None before the first epoch ends."""
    status: PastStatus
    start: str
    """ISO 8601; of a damaged record the time at which it was written."""
    elapsed_seconds: float | None
    error: str | None
    """Why the run failed, or why its record can't be read."""


def find_runs(root: Path) -> Iterator[Path]:
    """Every folder with a run.json at or under `root`; a run folder is not searched for others."""
    pending = [root]
    while pending:
        folder = pending.pop()
        if (folder / "run.json").exists() or _is_queued(folder):
            yield folder
            continue
        try:
            with os.scandir(folder) as entries:
                pending += [Path(entry.path) for entry in entries if entry.is_dir(follow_symlinks=False)]
        except PermissionError:
            continue  # of somebody else: nothing that could be listed


def sum_up(run_dir: Path) -> Line:
    """One run in brief; a damaged one says so instead of ending the list."""
    if _is_queued(run_dir):
        return _line_without_record(run_dir, "queued", None)
    try:
        refuse_ways_out_at(run_dir, _READ)
        record = read_record(run_dir)
        model, data = _model_and_data(run_dir, record)
        best, error = record.get("best"), record.get("error")
        return Line(
            folder=run_dir,
            model=model,
            data=data,
            best=best,
            status=status_of(run_dir, record),
            start=str(record.get("start")),
            elapsed_seconds=elapsed_seconds(run_dir, record),
            error=f"{error.get('name')}: {error.get('message')}" if error else None,
        )
    except (RunnerError, OSError) as error:
        return _line_without_record(run_dir, "damaged", str(error))


def _is_queued(folder: Path) -> bool:
    """A run that SLURM has not started yet: it has a config, but nothing has happened."""
    return not (folder / "run.json").exists() and (folder / "config.yaml").exists() and (folder / "logs").is_dir()


def _line_without_record(run_dir: Path, status: PastStatus, error: str | None) -> Line:
    written = datetime.fromtimestamp(run_dir.stat().st_mtime, UTC).isoformat(timespec="seconds")
    return Line(
        folder=run_dir,
        model=None,
        data=None,
        best=None,
        status=status,
        start=written,
        elapsed_seconds=None,
        error=error,
    )


def select(
    lines: list[Line], *, status: str | None = None, model: str | None = None, data: str | None = None
) -> list[Line]:
    """Those that fit all filters, newest first; `model` and `data` are patterns such as `resnet*`."""
    fitting = (
        line
        for line in lines
        if (status is None or line.status == status)
        and (model is None or fnmatchcase(line.model or "", model))
        and (data is None or any(fnmatchcase(word, data) for word in (line.data or "").split(" ", 1)))
    )
    return sorted(fitting, key=lambda line: (line.start, line.folder), reverse=True)


def _model_and_data(run_dir: Path, record: dict[str, Any]) -> tuple[str | None, str | None]:
    config = record.get("experiment")
    if not isinstance(config, dict):  # written before run.json said so
        values = read_values(run_dir)
        config = summary_of_experiment(values.get("model", {}), values.get("data", {}))
    data = " ".join(str(config[key]) for key in ("data", "data_root") if config.get(key))
    return config.get("model"), data or None
