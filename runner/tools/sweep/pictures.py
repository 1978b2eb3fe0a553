"""Pictures of a sweep as SVG, drawn without a display, scripts or a network."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, NullFormatter

from runner.evaluation.drawing import drawn

_DONE, _PRUNED = "#1f6fb4", "#b8860b"
_NUM_DECADES_FOR_LOG = 1.5


def as_svg(figure: Figure) -> str:
    """The picture without the head of an XML file, the same for the same data."""
    # Ids are hashed with a fixed salt; a date would make each page another.
    with mpl.rc_context({"svg.hashsalt": "runner", "svg.fonttype": "path"}):
        svg = drawn(figure, "svg", metadata={"Date": None}, bbox_inches="tight").decode()
    return svg[svg.index("<svg") :]


def curves(series: Mapping[int, tuple[Sequence[int], Sequence[float], bool]], metric: str) -> Figure:
    """The metric over the epochs, all trials over each other.

    Args:
        series: by number of the trial: epochs, values, and whether it was pruned, which is marked with a cross.
        metric: its name.
    """
    figure = Figure(figsize=(9, 4))
    axes = figure.subplots()
    for number, (epochs, values, is_pruned) in series.items():
        color = _PRUNED if is_pruned else _DONE
        axes.plot(epochs, values, color=color, alpha=0.7, linewidth=1.2, marker="." if len(epochs) == 1 else None)
        axes.annotate(str(number), (epochs[-1], values[-1]), xytext=(3, 0), textcoords="offset points", fontsize=7)
        if is_pruned:
            axes.plot(epochs[-1], values[-1], marker="x", color=color)
    axes.plot([], [], color=_DONE, label="to its end, or running")
    axes.plot([], [], color=_PRUNED, marker="x", label="pruned")
    axes.set(xlabel="epoch", ylabel=metric)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.legend(loc="best", fontsize=8)
    return figure


def scatter(values: Sequence[str], scores: Sequence[float], pruned: Sequence[bool], *, key: str, metric: str) -> Figure:
    """The metric against one key."""
    figure = Figure(figsize=(4, 3))
    axes = figure.subplots()
    places = positions(values)
    colors = [_PRUNED if is_pruned else _DONE for is_pruned in pruned]
    axes.scatter(places.of_values, scores, c=colors, s=18)
    axes.set(xlabel=key, ylabel=metric, xscale="log" if places.is_log else "linear")
    if places.is_log:  # matplotlib would write powers of ten as formulas
        axes.xaxis.set_major_formatter("{x:g}")
        axes.xaxis.set_minor_formatter(NullFormatter())
    if places.labels:
        axes.set_xticks(range(len(places.labels)), places.labels, rotation=30, ha="right", fontsize=8)
    return figure


def parallel_coordinates(
    rows: Sequence[Mapping[str, str]],
    scores: Sequence[float],
    pruned: Sequence[bool],
    *,
    keys: Sequence[str],
    metric: str,
) -> Figure:
    """One line per trial through its value on each key and its metric."""
    figure = Figure(figsize=(max(6.0, 1.8 * (len(keys) + 1)), 4))
    axes = figure.subplots()
    norm = Normalize(min(scores), max(scores))
    heights = {key: _heights([row.get(key, "–") for row in rows], axes, at) for at, key in enumerate(keys)}
    heights[metric] = [0.5 if norm.vmin == norm.vmax else float(norm(score)) for score in scores]
    for number, score in enumerate(scores):
        line = [heights[key][number] for key in (*keys, metric)]
        color = mpl.colormaps["viridis"](norm(score))
        axes.plot(range(len(line)), line, color=color, alpha=0.7, linestyle="--" if pruned[number] else "-")
    for end, height in ((min(scores), 0.0), (max(scores), 1.0)):
        axes.annotate(f"{end:.4g}", (len(keys), height), xytext=(4, 0), textcoords="offset points", fontsize=8)
    axes.set_xticks(range(len(keys) + 1), [*keys, metric])
    axes.set_yticks([])
    for at in range(len(keys) + 1):
        axes.axvline(at, color="#999999", linewidth=0.8)
    return figure


def bars(shares: Mapping[str, float]) -> Figure:
    """Importance of each key, in percent."""
    figure = Figure(figsize=(6, 0.6 + 0.4 * len(shares)))
    axes = figure.subplots()
    names = list(shares)[::-1]
    drawn = axes.barh(names, [100 * shares[name] for name in names], color=_DONE)
    axes.bar_label(drawn, fmt="%.0f%%", padding=3)
    axes.set(xlim=(0, 115), xlabel="share of the variance explained, percent")
    return figure


class Positions:
    """Where values stand on an axis: numbers in their place, words one after the other."""

    def __init__(self, of_values: list[float], labels: list[str], *, is_log: bool) -> None:
        self.of_values = of_values
        self.labels = labels
        self.is_log = is_log


def positions(values: Sequence[str]) -> Positions:
    """Numbers where all values are some, on a logarithmic axis where they span decades."""
    numbers = [_number(value) for value in values]
    if all(number is not None for number in numbers):
        known = [number for number in numbers if number is not None]
        is_log = min(known) > 0 and math.log10(max(known) / min(known)) > _NUM_DECADES_FOR_LOG
        return Positions(known, [], is_log=is_log)
    labels = list(dict.fromkeys(values))
    return Positions([float(labels.index(value)) for value in values], labels, is_log=False)


def _heights(values: Sequence[str], axes: Axes, at: int) -> list[float]:
    """Heights within [0, 1], with labels of what stands where."""
    places = positions(values)
    raw = [math.log10(place) for place in places.of_values] if places.is_log else places.of_values
    low, high = min(raw), max(raw)
    scaled = [0.5 if low == high else (place - low) / (high - low) for place in raw]
    named: dict[Any, float] = dict(zip(values, scaled, strict=True))
    shown = named if places.labels else {value: named[value] for value in _ends(values, raw)}
    for value, height in shown.items():
        label = value if _number(value) is None else f"{float(value):.3g}"
        axes.annotate(label, (at, height), xytext=(4, 2), textcoords="offset points", fontsize=8)
    return scaled


def _ends(values: Sequence[str], raw: Sequence[float]) -> list[str]:
    return list(dict.fromkeys((values[raw.index(min(raw))], values[raw.index(max(raw))])))


def _number(value: str) -> float | None:
    try:
        number = float(value)
    except ValueError:
        return None
    return number if math.isfinite(number) else None
