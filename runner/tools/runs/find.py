"""Finds run folders and summarises each in one line, fast enough for thousands: of each one small file is read."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from rich.cells import cell_len, set_cell_size

from runner.base.errors import ConfigError, Problem, RunnerError
from runner.base.user_paths import refuse_outside_links_at, typed_path
from runner.config.saved import read_values
from runner.config.schema.calls.of_runs import RunsFilter
from runner.run.run_folder import read_record, summary_of_experiment
from runner.tools.runs.past import PastStatus, elapsed_seconds, status_of

_LEAST_WIDTH = 10
"""To which a column of a table is shortened at most."""
_TEMPORARY = re.compile(r"\..*\.tmp")  # such as a run that is being deleted
# Files from which a line is made.
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
    """ISO 8601; where run.json is missing or damaged, the modification time of the folder."""
    elapsed_seconds: float | None
    error: str | None
    """Why the run failed, or why its record can't be read."""
    name: str | None = None
    group: str | None = None
    tags: dict[str, Any] = field(default_factory=dict)
    notes: str | None = None


def find_runs(root: Path) -> Iterator[Path]:
    """All run folders at or under `root`; a run folder is not searched for others."""
    pending = [root]
    while pending:
        folder = pending.pop()
        if (folder / "run.json").exists() or _is_queued(folder):
            yield folder
            continue
        try:
            with os.scandir(folder) as entries:
                folders = (entry for entry in entries if entry.is_dir(follow_symlinks=False))
                pending += [Path(entry.path) for entry in folders if not _TEMPORARY.fullmatch(entry.name)]
        except PermissionError:
            continue  # another user's folder


def line_of(run_dir: Path) -> Line:
    """The line of a run; of a damaged one the line has the error."""
    if _is_queued(run_dir):
        return _line_without_record(run_dir, "queued", None)
    try:
        refuse_outside_links_at(run_dir, _READ)
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
            name=record.get("name"),
            group=record.get("group"),
            tags=record.get("tags") or {},
            notes=record.get("notes"),
        )
    except (RunnerError, OSError) as error:
        return _line_without_record(run_dir, "damaged", str(error))


def _is_queued(folder: Path) -> bool:
    """Whether this is a run that SLURM has not started yet: it has config.yaml and logs, but no run.json."""
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
    lines: Iterable[Line],
    *,
    status: str | None = None,
    data: str | None = None,
    tags: Mapping[str, object] | None = None,
    **patterns: str | None,
) -> list[Line]:
    """The lines that match all filters.

    Args:
        lines: of runs.
        status: exactly.
        data: a pattern, such as `CIFAR*`, for the name of the data or its folder.
        tags: patterns by name of the tag; numbers and booleans match their text.
        patterns: for model, name and group, such as `resnet*`.
    """
    return [
        line
        for line in lines
        if (status is None or line.status == status)
        and (data is None or any(fnmatchcase(word, data) for word in (line.data or "").split(" ", 1)))
        and all(key in line.tags and fnmatchcase(str(line.tags[key]), str(want)) for key, want in (tags or {}).items())
        and all(want is None or fnmatchcase(getattr(line, key) or "", want) for key, want in patterns.items())
    ]


def select_under(call: RunsFilter) -> tuple[Path, list[Line]]:
    """The folder that was typed, and the runs under it that match all filters.

    Raises:
        ConfigError: there is no such folder.
    """
    root = typed_path(call.root, "root")
    if not root.is_dir():
        raise ConfigError([Problem(key="root", value=call.root, has_value=True, message="there is no such folder")])
    filters = {key: getattr(call, key) for key in ("status", "model", "data", "name", "group", "tags")}
    return root, select(map(line_of, find_runs(root)), **filters)


def _model_and_data(run_dir: Path, record: dict[str, Any]) -> tuple[str | None, str | None]:
    config = record.get("experiment")
    if not isinstance(config, dict):  # a run.json of an older version
        values = read_values(run_dir)
        config = summary_of_experiment(values.get("model", {}), values.get("data", {}))
    data = " ".join(str(config[key]) for key in ("data", "data_root") if config.get(key))
    return config.get("model"), data or None


def as_table(
    head: Sequence[str],
    rows: Iterable[Sequence[str]],
    *,
    width: int | None = None,
    rigid: Collection[str] = (),
    optional: Sequence[str] = (),
) -> str:
    """Left-aligned columns; control characters, such as a newline in a name, are shown as escapes.

    Args:
        head: names of the columns; the first identifies the row and is never shortened.
        rows: cells.
        width: characters of a line; longer values are shortened in the middle. None: as wide as they are.
        rigid: other columns that are never shortened.
        optional: columns that are left out, in this order, where the others would become too narrow.
    """
    columns = [list(column) for column in zip(head, *(map(_visible, row) for row in rows), strict=True)]
    rigid = {head[0], *rigid}
    dropped = iter(optional)
    while width is not None and sum(_least(column, rigid) + 2 for column in columns) - 2 > width:
        name = next(dropped, None)
        if name is None:
            break
        columns = [column for column in columns if column[0] != name]
    widths = _widths(columns, rigid, width)
    lines = zip(
        *([shortened(cell, most) for cell in column] for column, most in zip(columns, widths, strict=True)), strict=True
    )
    return "\n".join(
        "  ".join(cell + " " * (most - cell_len(cell)) for cell, most in zip(line, widths, strict=True)).rstrip()
        for line in lines
    )


def shortened(text: str, most: int) -> str:
    """A text of at most so many columns of the terminal, with … for its middle."""
    if cell_len(text) <= most:
        return text
    end = max(most - 1, 1) // 2
    return f"{set_cell_size(text, most - 1 - end).rstrip()}…{text[len(text) - end :]}"


def _least(column: Sequence[str], rigid: Collection[str]) -> int:
    needed = max(map(cell_len, column))
    return needed if column[0] in rigid else min(needed, _LEAST_WIDTH)


def _widths(columns: Sequence[Sequence[str]], rigid: Collection[str], width: int | None) -> list[int]:
    """As wide as needed; where that is too wide, the widest columns that are not rigid give way."""
    widths = [max(map(cell_len, column)) for column in columns]
    least = [_least(column, rigid) for column in columns]
    while width is not None and sum(widths) + 2 * (len(widths) - 1) > width:
        soft = [number for number in range(len(widths)) if widths[number] > least[number]]
        if not soft:
            break
        widths[max(soft, key=lambda number: widths[number])] -= 1
    return widths


def _visible(text: str) -> str:
    return "".join(letter if letter.isprintable() else letter.encode("unicode_escape").decode() for letter in text)
