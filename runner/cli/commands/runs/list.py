"""`python -m runner runs list [root=outputs] [status=… model=… data=…] [limit=…] [format=json]`: runs, newest first."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from runner.base.console import show
from runner.base.errors import EXIT_DONE, ConfigError, Problem
from runner.base.user_paths import typed_path
from runner.cli.call import read_own
from runner.config.schema.calls import RunsListCall
from runner.tools.runs.find import Line, as_table, find_runs, line_of, select
from runner.tools.runs.past import describe_metric, describe_seconds

_HEAD = ("folder", "model", "data", "best", "epoch", "status", "took", "started (UTC)")
_NOTHING = "–"


def run(argv: list[str]) -> int:
    """List runs.

    Raises:
        ConfigError: a filter is wrong, or the folder does not exist.
    """
    call = read_own("runs list", RunsListCall, argv)
    root = typed_path(call.root, "root")
    if not root.is_dir():
        raise ConfigError([Problem(key="root", value=call.root, has_value=True, message="there is no such folder")])
    lines = select(
        [line_of(folder) for folder in find_runs(root)], status=call.status, model=call.model, data=call.data
    )
    shown = lines[: call.limit]
    if call.format == "json":
        show(json.dumps([_as_json(line) for line in shown], indent=2, ensure_ascii=False))
    else:
        show(_table([_cells(line, root) for line in shown]) if shown else f"no such runs under {root}")
        if len(shown) < len(lines):
            show(f"{len(lines) - len(shown)} older runs are not shown (limit={call.limit})")
    return EXIT_DONE


def _table(rows: list[tuple[str, ...]]) -> str:
    # The folder has the start in its name.
    return as_table(
        _HEAD,
        rows,
        width=shutil.get_terminal_size().columns,
        rigid=("best", "epoch", "status"),
        optional=("started (UTC)", "took", "epoch"),
    )


def _as_json(line: Line) -> dict[str, object]:
    return {**vars(line), "folder": str(line.folder.resolve())}


def _cells(line: Line, root: Path) -> tuple[str, ...]:
    best, error = line.best, (line.error or "").partition(":")[0]
    return (
        str(root if line.folder == root else line.folder.relative_to(root)),
        line.model or _NOTHING,
        line.data or _NOTHING,
        f"{best['metric']} {describe_metric(best['metric'], best['value'])}" if best else _NOTHING,
        str(best["epoch"]) if best else _NOTHING,
        f"{line.status} ({error})" if error.isidentifier() else line.status,
        _NOTHING if line.elapsed_seconds is None else describe_seconds(line.elapsed_seconds),
        line.start.removesuffix("+00:00").replace("T", " "),
    )
