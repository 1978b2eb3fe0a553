"""`python -m runner runs list [root=outputs] [status=… tags.a=…] [sort=val_top1] [columns=[…]] [format=csv]`."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from runner.base.console import show
from runner.base.errors import EXIT_DONE
from runner.base.safe_text import csv_lines
from runner.cli.call import read_own
from runner.config.schema.calls.of_runs import RunsListCall
from runner.tools.runs.columns import FACTS, RunColumns
from runner.tools.runs.find import Line, as_table, select_under
from runner.tools.runs.past import describe_metric, describe_seconds

_USUAL = ("folder", "model", "data", "best", "epoch", "status", "took", "start")
_HEADINGS = {"start": "started (UTC)"}
_NOTHING = "–"


def run(argv: list[str]) -> int:
    """List runs.

    Raises:
        ConfigError: a filter or a column is wrong, or the folder does not exist.
    """
    call = read_own("runs list", RunsListCall, argv)
    root, lines = select_under(call)
    columns = RunColumns(lines)
    for key, column in [*(("columns", column) for column in call.columns), ("sort", call.sort or "start")]:
        columns.check(key, column)
    lines = columns.sorted(call.sort)
    shown = lines[: call.limit]
    match call.format:
        case "json":
            show(json.dumps([_as_json(line, call.columns, columns) for line in shown], indent=2, ensure_ascii=False))
        case "csv":
            names = call.columns or FACTS
            cells = ([_plain(columns.value(line, name)) for name in names] for line in shown)
            show(csv_lines([names, *cells]).removesuffix("\n"))
        case "table":
            names = call.columns or _usual(shown, call.sort)
            rows = [[_cell(line, name, columns, root) for name in names] for line in shown]
            show(_table(names, rows) if shown else f"no such runs under {root}")
    if len(shown) < len(lines) and call.format == "table":
        kind = "older" if call.sort is None else "more"
        show(f"{len(lines) - len(shown)} {kind} runs are not shown (limit={call.limit})")
    return EXIT_DONE


def _usual(lines: Sequence[Line], sort: str | None) -> tuple[str, ...]:
    """The columns where none are asked for: with the names, if there are any, and with what the runs are sorted by."""
    named = ["name"] if any(line.name for line in lines) else []
    sorted_by = [sort] if sort is not None and sort not in (*_USUAL, "name") else []
    return (_USUAL[0], *named, *sorted_by, *_USUAL[1:])


def _table(names: Sequence[str], rows: list[list[str]]) -> str:
    # The folder has the start in its name.
    head = [_HEADINGS.get(name, name) for name in names]
    rigid, optional = ("best", "epoch", "status"), (_HEADINGS["start"], "took", "epoch")
    return as_table(head, rows, width=shutil.get_terminal_size().columns, rigid=rigid, optional=optional)


def _as_json(line: Line, names: Sequence[str], columns: RunColumns) -> dict[str, object]:
    if names:
        return {name: columns.value(line, name) for name in names}
    return {**vars(line), "folder": str(line.folder.resolve())}


def _plain(value: Any) -> Any:  # noqa: ANN401 - whatever JSON can hold
    return json.dumps(value, ensure_ascii=False) if isinstance(value, dict | list) else value


def _cell(line: Line, name: str, columns: RunColumns, root: Path) -> str:
    value = columns.value(line, name)
    match name:
        case _ if value is None:
            text = _NOTHING
        case "folder":
            text = str(root if line.folder == root else line.folder.relative_to(root))
        case "best" if line.best:
            text = f"{line.best['metric']} {describe_metric(line.best['metric'], value)}"
        case "status":
            error = (line.error or "").partition(":")[0]
            text = f"{value} ({error})" if error.isidentifier() else str(value)
        case "took":
            text = describe_seconds(value)
        case "start":
            text = str(value).removesuffix("+00:00").replace("T", " ")
        case "tags":
            text = ", ".join(f"{key}={item}" for key, item in value.items())
        case _ if name.startswith(("val_", "train_top", "train_loss")) and isinstance(value, int | float):
            text = describe_metric(name, value)
        case _:
            text = f"{value:.6g}" if isinstance(value, float) else str(_plain(value))
    return text
