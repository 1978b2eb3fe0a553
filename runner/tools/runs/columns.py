"""The columns of `runs list`: facts of run.json, metrics of the best epoch, keys of the config."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from typing import Any

from runner.base.errors import ConfigError, Problem, RunnerError
from runner.config.saved import read_values
from runner.run.contents import read_rows
from runner.tools.runs.find import Line

FACTS = ("folder", "name", "group", "tags", "notes", "model", "data", "best", "epoch", "status", "took", "start")
_SMALLER_IS_BETTER = ("loss", "seconds")


class RunColumns:
    """Values of columns by run; the metrics and the config of a run are read once, where a column asks for them."""

    def __init__(self, lines: Sequence[Line]) -> None:
        self._lines = lines
        self._metrics: dict[int, Mapping[str, Any]] = {}
        self._configs: dict[int, Mapping[str, Any]] = {}

    def check(self, key: str, column: str) -> None:
        """Check that a run has something for a column.

        Args:
            key: of the call, for the message.
            column: as typed.

        Raises:
            ConfigError: no run has it.
        """
        if column in FACTS or not self._lines or any(self.value(line, column) is not None for line in self._lines):
            return
        known = {*FACTS, *(name for line in self._lines for name in self._row(line))}
        close = difflib.get_close_matches(column, known, n=1)
        hint = f"did you mean {close[0]}?" if close else f"there are {', '.join(sorted(known))}, and the config's keys"
        raise ConfigError([Problem(key=key, value=column, has_value=True, message="no run has this", hint=hint)])

    def value(self, line: Line, column: str) -> Any:  # noqa: ANN401 - whatever JSON can hold
        """The value of a column for a run; None where it has none."""
        facts = {
            **vars(line),
            "folder": str(line.folder.resolve()),
            "tags": line.tags or None,
            "best": line.best and line.best["value"],
            "epoch": line.best and line.best["epoch"],
            "took": line.elapsed_seconds,
        }
        if column in FACTS:
            return facts[column]
        if column.startswith("tags."):
            return line.tags.get(column.removeprefix("tags."))
        metric = self._row(line).get(column)
        return metric if metric is not None else _within(self._config(line), column)

    def sorted(self, column: str | None) -> list[Line]:
        """The runs, the best first by a column (by `start` or None the newest); those without a value come last."""
        newest = sorted(self._lines, key=lambda line: (line.start, line.folder), reverse=True)
        if column in (None, "start"):
            return newest
        assert column is not None, "the case before"
        values = {id(line): self.value(line, column) for line in newest}
        known = [line for line in newest if values[id(line)] is not None]
        are_numbers = all(isinstance(values[id(line)], int | float) for line in known)
        metric = known[0].best["metric"] if column == "best" and known and known[0].best else column
        is_small = metric == "took" or any(word in metric for word in _SMALLER_IS_BETTER)
        known.sort(key=lambda line: _order(values[id(line)], are_numbers), reverse=are_numbers and not is_small)
        return known + [line for line in newest if values[id(line)] is None]

    def _row(self, line: Line) -> Mapping[str, Any]:
        """The metrics of the best epoch, or of the last one; none of a run that can't be read."""
        if id(line) not in self._metrics:
            try:
                rows = read_rows(line.folder / "metrics.jsonl")
            except RunnerError:  # the list shows the run's damage
                rows = ()
            best = [row for row in rows if line.best and row["epoch"] == line.best["epoch"]]
            self._metrics[id(line)] = (best or [*rows[-1:], {}])[0]
        return self._metrics[id(line)]

    def _config(self, line: Line) -> Mapping[str, Any]:
        if id(line) not in self._configs:
            try:
                self._configs[id(line)] = read_values(line.folder)
            except RunnerError:  # as above
                self._configs[id(line)] = {}
        return self._configs[id(line)]


def _within(values: Any, key: str) -> Any:  # noqa: ANN401 - plain values
    for part in key.split("."):
        values = values.get(part) if isinstance(values, Mapping) else None
    return values


def _order(value: Any, are_numbers: bool) -> Any:  # noqa: ANN401 - plain values
    return value if are_numbers else str(value)
