"""The page of `runs compare`: what differs between many runs, and their curves over each other."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from runner.tools.report.charts import Picture, chart
from runner.tools.report.facts import flat
from runner.tools.report.write import fill_template
from runner.tools.runs.find import Line
from runner.tools.runs.past import PastRun, describe_metric, describe_seconds, read_run

_SIZE_INCHES = (9.5, 3.6)
# What differs between any two runs and says nothing.
_OWN_KEYS = ("output_dir", "run.")
_LAST_KEYS = ("lr", "train_images_per_second", "epoch_seconds")
_MOST_MARKERS = 30


def render_comparison(lines: Sequence[Line]) -> str:
    """The page as HTML.

    Args:
        lines: of the runs, in the order of the table.

    Raises:
        CheckpointError: a file of a run is damaged.
    """
    runs = [read_run(line.folder) for line in lines]
    labels = _labels(lines)
    configs = [flat(run.config) for run in runs]
    keys = [
        key
        for key in dict.fromkeys(key for config in configs for key in config)
        if len({config.get(key) for config in configs}) > 1 and not key.startswith(_OWN_KEYS)
    ]
    rows = [
        {"cells": [label, *_outcome(line), *(config.get(key, "–") for key in keys)], "status": line.status}
        for label, line, config in zip(labels, lines, configs, strict=True)
    ]
    return fill_template(
        "compare.html",
        count=len(runs),
        columns=["run", "group", "tags", "best", "epoch", "took", *keys, "status"],
        rows=rows,
        pictures=list(_curves(runs, labels)),
    )


def _labels(lines: Sequence[Line]) -> list[str]:
    """The name of each run, with its folder where two have the same or it has none."""
    names = [line.name for line in lines]
    folders = ["/".join(line.folder.resolve().parts[-2:]) for line in lines]
    return [
        folder if name is None else name if names.count(name) == 1 else f"{name} ({folder})"
        for name, folder in zip(names, folders, strict=True)
    ]


def _outcome(line: Line) -> tuple[str, ...]:
    best = line.best
    return (
        line.group or "",
        ", ".join(f"{tag}={value}" for tag, value in line.tags.items()),
        f"{best['metric']} {describe_metric(best['metric'], best['value'])}" if best else "–",
        str(best["epoch"]) if best else "–",
        "–" if line.elapsed_seconds is None else describe_seconds(line.elapsed_seconds),
    )


def _curves(runs: Sequence[PastRun], labels: Sequence[str]) -> Iterator[Picture]:
    """A chart per metric that differs anywhere, of validation first."""
    known: dict[str, set[float]] = {}
    for key, value in (item for run in runs for row in run.rows for item in row.items()):
        if _is_number(value):
            known.setdefault(key, set()).add(value)
    metrics = [key for key in known if key not in ("epoch", "step", *_LAST_KEYS) and "second" not in key]
    metrics = [key for key in metrics if len(known[key]) > 1]
    metrics.sort(key=lambda key: not key.startswith("val"))
    for key in [*metrics, *(key for key in _LAST_KEYS if key in known)]:
        yield _chart(runs, labels, key)


def _chart(runs: Sequence[PastRun], labels: Sequence[str], key: str) -> Picture:
    colors = mpl.colormaps["tab20" if len(runs) > 10 else "tab10"]

    def draw(axes: Axes) -> None:
        for number, (run, label) in enumerate(zip(runs, labels, strict=True)):
            points = [(row["epoch"], row[key]) for row in run.rows if _is_number(row.get(key))]
            if points:
                marker = "o" if len(points) <= _MOST_MARKERS else None
                shown = label.replace("$", r"\$")  # no formula
                # matplotlib leaves out labels that begin with an underscore.
                (line,) = axes.plot(*zip(*points, strict=True), color=colors(number % colors.N), marker=marker)
                line.set_label(f"\u200b{shown}" if shown.startswith("_") else shown)
        axes.set(xlabel="epoch", ylabel=key)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), fontsize=7)

    return chart(key, f"{key} by epoch of {len(runs)} runs", draw, _SIZE_INCHES)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float)
