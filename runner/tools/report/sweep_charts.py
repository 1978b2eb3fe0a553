"""The charts of a sweep's report: its metric by epoch, against each key, and how much each key matters."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.colors import Normalize
from matplotlib.ticker import MaxNLocator, NullFormatter

from runner.tools.report.charts import BLUE, GREY, OCHRE, Picture, chart

_WIDE_INCHES = 9.5
_FEWEST_DECADES_FOR_LOG = 1.5


@dataclass(frozen=True, kw_only=True)
class TrialCurve:
    """The metric of one trial after each of its epochs."""

    number: int
    """Of the trial."""
    epochs: Sequence[int]
    values: Sequence[float]
    is_pruned: bool


def metric_by_epoch(trials: Sequence[TrialCurve], metric: str) -> Picture:
    """The metric of all trials over the epochs; a cross ends a pruned one."""

    def draw(axes: Axes) -> None:
        for trial in trials:
            color, end = _color(trial.is_pruned), (trial.epochs[-1], trial.values[-1])
            marker = "." if len(trial.epochs) == 1 else None
            axes.plot(trial.epochs, trial.values, color=color, alpha=0.7, linewidth=1.2, marker=marker)
            axes.annotate(str(trial.number), end, xytext=(3, 0), textcoords="offset points", fontsize=7)
            if trial.is_pruned:
                axes.plot(*end, marker="x", color=color)
        axes.plot([], [], color=BLUE, label="completed, or running")
        axes.plot([], [], color=OCHRE, marker="x", label="pruned")
        axes.set(xlabel="epoch", ylabel=metric)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.legend(loc="best", fontsize=8)

    return chart("", f"{metric} by epoch", draw, (_WIDE_INCHES, 4))


def metric_against_key(
    values: Sequence[str], scores: Sequence[float], is_pruned: Sequence[bool], *, key: str, metric: str
) -> Picture:
    """The best metric of each trial, at its value of one key."""

    def draw(axes: Axes) -> None:
        places = positions(values)
        axes.scatter(places.of_values, scores, c=list(map(_color, is_pruned)), s=18)
        axes.set(xlabel=key, ylabel=metric, xscale="log" if places.is_log else "linear")
        if places.is_log:  # matplotlib would write powers of ten as formulas
            axes.xaxis.set_major_formatter("{x:g}")
            axes.xaxis.set_minor_formatter(NullFormatter())
        if places.labels:
            axes.set_xticks(range(len(places.labels)), places.labels, rotation=30, ha="right", fontsize=8)

    return chart(key, f"{metric} against {key}", draw)


def parallel_coordinates(
    rows: Sequence[Mapping[str, str]],
    scores: Sequence[float],
    is_pruned: Sequence[bool],
    *,
    keys: Sequence[str],
    metric: str,
) -> Picture:
    """One line per trial through its value of each key and its metric."""
    norm = Normalize(min(scores), max(scores))

    def draw(axes: Axes) -> None:
        heights = [_heights([row.get(key, "–") for row in rows], axes, at) for at, key in enumerate(keys)]
        heights.append([0.5 if norm.vmin == norm.vmax else float(norm(score)) for score in scores])
        for line, score, is_dashed in zip(zip(*heights, strict=True), scores, is_pruned, strict=True):
            color = mpl.colormaps["viridis"](norm(score))
            axes.plot(range(len(line)), line, color=color, alpha=0.7, linestyle="--" if is_dashed else "-")
        for end, height in ((min(scores), 0.0), (max(scores), 1.0)):
            axes.annotate(f"{end:.4g}", (len(keys), height), xytext=(4, 0), textcoords="offset points", fontsize=8)
        axes.set_xticks(range(len(keys) + 1), [*keys, metric])
        axes.set_yticks([])
        for at in range(len(keys) + 1):
            axes.axvline(at, color=GREY, linewidth=0.8)

    return chart("", "parallel coordinates", draw, (max(_WIDE_INCHES, 1.8 * (len(keys) + 1)), 4))


def importance_bars(shares: Mapping[str, float]) -> Picture:
    """Importance of each key, in percent.

    Args:
        shares: by key, in [0, 1].
    """

    def draw(axes: Axes) -> None:
        names = list(shares)[::-1]
        bars = axes.barh(names, [100 * shares[name] for name in names], color=BLUE)
        axes.bar_label(bars, fmt="%.0f%%", padding=3)
        axes.set(xlim=(0, 115), xlabel="share of the variance explained, percent")
        axes.grid(visible=False)

    return chart("", "importance of each key", draw, (_WIDE_INCHES, 0.6 + 0.4 * len(shares)))


@dataclass(frozen=True, kw_only=True)
class Positions:
    """Where values stand on an axis: numbers in their place, words one after the other."""

    of_values: list[float]
    labels: list[str]
    """What stands at 0, 1, 2 …, where the values are words."""
    is_log: bool


def positions(values: Sequence[str]) -> Positions:
    """Numbers where all values are some, on a logarithmic axis where they span decades; else words."""
    numbers = [number for number in map(_number, values) if number is not None]
    if len(numbers) == len(values):
        is_log = min(numbers) > 0 and math.log10(max(numbers) / min(numbers)) > _FEWEST_DECADES_FOR_LOG
        return Positions(of_values=numbers, labels=[], is_log=is_log)
    labels = list(dict.fromkeys(values))
    return Positions(of_values=[float(labels.index(value)) for value in values], labels=labels, is_log=False)


def _heights(values: Sequence[str], axes: Axes, at: int) -> list[float]:
    """Height of each value within [0, 1]; writes beside the axis which words, or which ends of numbers, lie where."""
    places = positions(values)
    raw = [math.log10(place) for place in places.of_values] if places.is_log else places.of_values
    low, high = min(raw), max(raw)
    scaled = [0.5 if low == high else (place - low) / (high - low) for place in raw]
    for value, height in dict(zip(values, scaled, strict=True)).items():
        if places.labels or height in (scaled[raw.index(low)], scaled[raw.index(high)]):
            label = value if _number(value) is None else f"{float(value):.3g}"
            axes.annotate(label, (at, height), xytext=(4, 2), textcoords="offset points", fontsize=8)
    return scaled


def _number(value: str) -> float | None:
    try:
        number = float(value)
    except ValueError:
        return None
    return number if math.isfinite(number) else None


def _color(is_pruned: bool) -> str:
    return OCHRE if is_pruned else BLUE
