"""`python -m runner runs diff a=DIR b=DIR [format=json]`: what differs between two runs."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from runner.base.console import show
from runner.base.errors import EXIT_DONE
from runner.base.user_paths import typed_path
from runner.cli.call import read_own
from runner.config.schema.calls import RunsDiffCall
from runner.tools.runs.diff import Differences, differences
from runner.tools.runs.past import read_run
from runner.tools.runs.table import as_table


def run(argv: list[str]) -> int:
    """Compare two runs.

    Raises:
        CheckpointError: when one of the folders is no run folder or is damaged.
    """
    call = read_own("runs diff", RunsDiffCall, argv)
    first, second = typed_path(call.a, "a"), typed_path(call.b, "b")
    found = differences(read_run(first), read_run(second))
    if call.format == "json":
        show(json.dumps({"a": str(first), "b": str(second), **found}, indent=2, ensure_ascii=False))
    else:
        show(_as_text(found, str(first), str(second)))
    return EXIT_DONE


def _as_text(found: Mapping[str, Differences], first: str, second: str) -> str:
    if not found:
        return f"{first} and {second}: nothing differs"
    blocks = [
        as_table((section, "a", "b"), [(key, *_shown_pair(old, new)) for key, (old, new) in pairs.items()])
        for section, pairs in found.items()
    ]
    return "\n\n".join([f"a  {first}\nb  {second}", *blocks])


def _shown_pair(old: Any, new: Any) -> tuple[str, str]:  # noqa: ANN401 - plain values
    """Both in brief, but never so briefly that their difference is lost."""
    brief = tuple(f"{value:.6g}" if isinstance(value, float) else _shown(value) for value in (old, new))
    return (brief[0], brief[1]) if brief[0] != brief[1] else (_shown(old), _shown(new))


def _shown(value: Any) -> str:  # noqa: ANN401 - plain values
    if value is None:
        return "–"
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
