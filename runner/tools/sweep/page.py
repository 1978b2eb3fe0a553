"""One self-contained HTML page of a sweep: no script, nothing from a network."""

from __future__ import annotations

import importlib.util
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from matplotlib.figure import Figure

from runner.tools.sweep.folder import Outcome, SweepFolder, epochs_of, value_of
from runner.tools.sweep.leaderboard import (
    Leaderboard,
    Place,
    brief,
    command_of,
    config_flags,
    experiment_of,
    read_leaderboard,
    spoken_metrics,
)
from runner.tools.sweep.pictures import as_svg, bars, curves, parallel_coordinates, positions, scatter

_FEWEST_TRIALS = 4
_SEED = 0


@dataclass(frozen=True, kw_only=True)
class Picture:
    """A drawing and what it shows, for those who can't see it."""

    label: str
    svg: Markup


@dataclass(frozen=True, kw_only=True)
class Section:
    """A heading with pictures."""

    title: str
    text: str
    pictures: list[Picture]


def page_of(folder: SweepFolder) -> str:
    """The page as HTML, whether the sweep is over or not.

    Raises:
        OutputError: when it is no folder of a sweep.
    """
    record = folder.record()
    board = read_leaderboard(folder, folder.trials(), record["metrics"], record["directions"])
    environment = Environment(
        loader=PackageLoader("runner.tools.sweep", package_path=""), autoescape=True, undefined=StrictUndefined
    )
    counts = Counter(place.outcome.status for place in board.places)
    return environment.get_template("page.html").render(
        name="/".join(folder.path.parts[-2:]),
        counts=", ".join(f"{number} {status}" for status, number in counts.items()),
        goals=", ".join(
            f"{direction} {metric}" for metric, direction in zip(board.metrics, board.directions, strict=True)
        ),
        start=record["start"],
        best=_winner(board, config_flags(record["argv"])),
        columns=["rank", "trial", *board.metrics, *board.keys, "epochs", "seconds", "status", ""],
        rows=[_row(place, board) for place in board.places],
        sections=list(_sections(folder, board)),
    )


def _winner(board: Leaderboard, flags: list[str]) -> dict[str, Any] | None:
    best = board.best
    if best is None:
        return None
    return {
        "number": best.trial.number,
        "told": spoken_metrics(best, board),
        "command": command_of(best.trial, flags),
        "experiment": experiment_of(best, board.metrics),
    }


def _row(place: Place, board: Leaderboard) -> dict[str, Any]:
    outcome = place.outcome
    values = ("",) * len(board.metrics) if outcome.values is None else (f"{value:.4f}" for value in outcome.values)
    cells = [
        "" if place.rank is None else place.rank,
        outcome.trial.number,
        *values,
        *(brief(outcome.trial.values.get(key, "–")) for key in board.keys),
        outcome.num_epochs,
        f"{outcome.seconds:.1f}",
        outcome.status,
    ]
    return {"status": outcome.status, "cells": cells, "error": outcome.error or ""}


def _sections(folder: SweepFolder, board: Leaderboard) -> Iterator[Section]:
    metric, keys = board.metrics[0], board.keys
    known = [place.outcome for place in board.places if place.outcome.values is not None]
    if not known:
        return
    scores = [outcome.values[0] for outcome in known if outcome.values is not None]
    pruned = [outcome.status == "pruned" for outcome in known]
    if keys:
        rows = [outcome.trial.values for outcome in known]
        drawn = parallel_coordinates(rows, scores, pruned, keys=keys, metric=metric)
        text = "One line per trial; light is a high value, dashed a pruned trial."
        yield Section(title="Parallel coordinates", text=text, pictures=[_picture(drawn, "parallel coordinates")])
        drawings = [_against(known, key, metric) for key in keys]
        text = f"Best {metric} of each trial; pruned ones in ochre."
        yield Section(title=f"{metric} against each key", text=text, pictures=drawings)
    shares = importances(known, board)
    if shares:
        text = "How much of the differences each key explains (fANOVA over the trials that were trained to their end)."
        yield Section(title="Importance", text=text, pictures=[_picture(bars(shares), "importance of each key")])
    text = "All trials over each other, with their numbers; a cross ends a pruned one."
    drawn = curves(_series(folder, known, board), metric)
    yield Section(title=f"{metric} over the epochs", text=text, pictures=[_picture(drawn, f"{metric} by epoch")])


def _against(known: list[Outcome], key: str, metric: str) -> Picture:
    having = [outcome for outcome in known if key in outcome.trial.values]
    drawn = scatter(
        [outcome.trial.values[key] for outcome in having],
        [outcome.values[0] for outcome in having if outcome.values is not None],
        [outcome.status == "pruned" for outcome in having],
        key=key,
        metric=metric,
    )
    return _picture(drawn, f"{metric} against {key}")


def _series(
    folder: SweepFolder, known: list[Outcome], board: Leaderboard
) -> dict[int, tuple[list[int], list[float], bool]]:
    series = {}
    for outcome in known:
        rows = epochs_of(folder.run_dir(outcome.trial))
        points = [(row["epoch"], value_of(row, board.metrics[0], board.directions[0])) for row in rows]
        there = [(epoch, value) for epoch, value in points if value is not None]
        epochs, values = [epoch for epoch, _ in there], [value for _, value in there]
        series[outcome.trial.number] = (epochs, values, outcome.status == "pruned")
    return series


def _picture(figure: Figure, label: str) -> Picture:
    return Picture(label=label, svg=Markup(as_svg(figure)))


def importances(outcomes: Sequence[Outcome], board: Leaderboard) -> dict[str, float]:
    """Shares in [0, 1] that add up to 1, the largest first; empty where too little is known.

    By fANOVA (Hutter, Hoos & Leyton-Brown 2014) over the keys that all completed trials have, for the first metric.
    """
    done = [outcome for outcome in outcomes if outcome.status == "completed" and outcome.values is not None]
    keys = [key for key in board.keys if all(key in outcome.trial.values for outcome in done)]
    varied = [key for key in keys if len({outcome.trial.values[key] for outcome in done}) > 1]
    scores = [outcome.values[0] for outcome in done if outcome.values is not None]
    is_enough = len(done) >= _FEWEST_TRIALS and len(set(scores)) > 1 and bool(varied)
    if not is_enough or importlib.util.find_spec("optuna") is None:
        return {}
    return _by_optuna({key: [outcome.trial.values[key] for outcome in done] for key in varied}, scores)


def _by_optuna(values: dict[str, list[str]], scores: Sequence[float]) -> dict[str, float]:
    import optuna  # noqa: PLC0415 - an extra
    from optuna.importance import FanovaImportanceEvaluator, get_param_importances  # noqa: PLC0415

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    study = optuna.create_study()
    parameters: list[dict[str, object]] = [{} for _ in scores]
    distributions: dict[str, optuna.distributions.BaseDistribution] = {}
    for key, column in values.items():
        places = positions(column)
        if places.labels:
            distributions[key] = optuna.distributions.CategoricalDistribution(places.labels)
        else:
            low, high = min(places.of_values), max(places.of_values)
            distributions[key] = optuna.distributions.FloatDistribution(low, high, log=places.is_log)
        for row, (word, number) in enumerate(zip(column, places.of_values, strict=True)):
            parameters[row][key] = word if places.labels else number
    for params, score in zip(parameters, scores, strict=True):
        study.add_trial(optuna.trial.create_trial(params=params, distributions=distributions, value=score))
    return dict(get_param_importances(study, evaluator=FanovaImportanceEvaluator(seed=_SEED)))
