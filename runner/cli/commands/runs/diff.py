"""`python -m runner runs diff a=DIR b=DIR [format=json]`: what differs between two runs."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from typing import Any

from rich.cells import cell_len

from runner.base.console import show
from runner.base.errors import EXIT_DONE
from runner.base.user_paths import typed_path
from runner.cli.call import read_own
from runner.config.schema.calls.of_runs import RunsDiffCall
from runner.tools.runs.find import as_table, shortened
from runner.tools.runs.past import Differences, PastRun, compare_runs, describe_metric, has_top5, read_run

_ORDER = ("config", "metrics", "data", "code", "environment")
_LEAST = 10


def run(argv: list[str]) -> int:
    """Compare two runs.

    Raises:
        CheckpointError: one of the folders is no run folder or is damaged.
    """
    call = read_own("runs diff", RunsDiffCall, argv)
    first, second = typed_path(call.a, "a"), typed_path(call.b, "b")
    runs = read_run(first), read_run(second)
    found = compare_runs(*runs)
    if call.format == "json":
        show(json.dumps({"a": str(first), "b": str(second), **found}, indent=2, ensure_ascii=False))
    else:
        show(_as_text(found, *runs))
    return EXIT_DONE


def _as_text(found: Mapping[str, Differences], first: PastRun, second: PastRun) -> str:
    """What came out above, then what differs: the keys, the metrics beside them, and the rest."""
    if not found:
        return f"{first.path} and {second.path}: nothing differs"
    width = shutil.get_terminal_size().columns
    hidden = () if has_top5(first) or has_top5(second) else ("top5",)
    blocks = []
    for section in sorted(found, key=_ORDER.index):
        rows = [(key, *_shown_pair(*pair)) for key, pair in found[section].items() if not key.endswith(hidden)]
        most = (width - 4 - max(cell_len(key) for key, *_ in [(section,), *rows])) // 2
        rows = [(key, *_shortened_pair(old, new, max(most, _LEAST))) for key, old, new in rows]
        blocks.append(as_table((section, "a", "b"), rows))
    return "\n\n".join([f"a  {_outcome(first)}\nb  {_outcome(second)}", *blocks])


def _outcome(run: PastRun) -> str:
    best = run.record.get("best")
    value = (
        f"  {best['metric']} {describe_metric(best['metric'], best['value'])} at epoch {best['epoch']}" if best else ""
    )
    return f"{run.path}  {run.status}{value}"


def _shortened_pair(old: str, new: str, most: int) -> tuple[str, str]:
    """Both values shortened in the middle, or, where they would look the same then, from where they begin to differ."""
    brief = shortened(old, most), shortened(new, most)
    if brief[0] != brief[1] or old == new:
        return brief
    same = next((number for number, pair in enumerate(zip(old, new, strict=False)) if pair[0] != pair[1]), most)
    start = max(same - most // 3, 0)
    return shortened(f"…{old[start:]}", most), shortened(f"…{new[start:]}", most)


def _shown_pair(old: Any, new: Any) -> tuple[str, str]:  # noqa: ANN401 - plain values
    """Both values, rounded unless that makes them equal."""
    brief = tuple(f"{value:.6g}" if isinstance(value, float) else _shown(value) for value in (old, new))
    return (brief[0], brief[1]) if brief[0] != brief[1] else (_shown(old), _shown(new))


def _shown(value: Any) -> str:  # noqa: ANN401 - plain values
    if value is None:
        return "–"
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
