"""The report of a sweep: its winner, its leaderboard, and charts of what the keys make of the metric."""

from __future__ import annotations

import importlib.util
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from runner.tools.report.charts import Picture
from runner.tools.report.sweep_charts import (
    TrialCurve,
    importance_bars,
    metric_against_key,
    metric_by_epoch,
    parallel_coordinates,
    positions,
)
from runner.tools.report.write import fill_template
from runner.tools.runs.past import describe_names
from runner.tools.sweep.leaderboard import (
    Leaderboard,
    LeaderboardRow,
    command_of,
    config_flags,
    describe_metrics,
    experiment_of,
    read_leaderboard,
    short_value,
)
from runner.tools.sweep.sweep_folder import SweepFolder, TrialOutcome, epochs_of, value_of

_FEWEST_TRIALS = 4
_SEED = 0


@dataclass(frozen=True, kw_only=True)
class ChartGroup:
    """Charts under one heading."""

    title: str
    text: str
    pictures: Sequence[Picture]


def render_sweep(folder: SweepFolder) -> str:
    """The page of a sweep as HTML, whether the sweep is over or not.

    Raises:
        OutputError: when it is no folder of a sweep.
    """
    record = folder.record()
    board = read_leaderboard(folder, folder.trials(), record["metrics"], record["directions"])
    counts = Counter(outcome.status for outcome in board.outcomes)
    names = {describe_names(outcome.trial.config.get("run", {})) for outcome in board.outcomes} - {""}
    goals = zip(board.directions, board.metrics, strict=True)
    return fill_template(
        "sweep.html",
        name="/".join(folder.path.parts[-2:]),
        counts=", ".join(f"{number} {status}" for status, number in counts.items()),
        goals=", ".join(f"{direction} {metric}" for direction, metric in goals),
        start=record["start"],
        names=sorted(names) if len(names) == 1 else (),
        best=_winner(board, config_flags(record["argv"])),
        columns=["rank", "trial", *board.metrics, *board.keys, "epochs", "seconds", "status"],
        rows=[_row(row, board) for row in board.rows],
        sections=list(_chart_groups(folder, board)),
    )


def _winner(board: Leaderboard, flags: list[str]) -> dict[str, Any] | None:
    best = board.best
    if best is None:
        return None
    return {
        "number": best.trial.number,
        "metrics": describe_metrics(best, board),
        "command": command_of(best.trial, flags),
        "experiment": experiment_of(best, board.metrics),
    }


def _row(row: LeaderboardRow, board: Leaderboard) -> dict[str, Any]:
    outcome = row.outcome
    values = ("",) * len(board.metrics) if outcome.values is None else (f"{value:.4f}" for value in outcome.values)
    cells = [
        "" if row.rank is None else row.rank,
        outcome.trial.number,
        *values,
        *(short_value(outcome.trial.values.get(key, "–")) for key in board.keys),
        outcome.num_epochs,
        f"{outcome.seconds:.1f}",
    ]
    return {"cells": cells, "status": outcome.status, "error": outcome.error or ""}


def _chart_groups(folder: SweepFolder, board: Leaderboard) -> Iterator[ChartGroup]:
    metric = board.metrics[0]
    known = [(outcome, outcome.values[0]) for outcome in board.outcomes if outcome.values is not None]
    if not known:
        return
    keys = [key for key in board.keys if any(key in outcome.trial.values for outcome, _ in known)]
    if keys:
        rows, scores = [outcome.trial.values for outcome, _ in known], [score for _, score in known]
        is_pruned = [outcome.status == "pruned" for outcome, _ in known]
        drawn = parallel_coordinates(rows, scores, is_pruned, keys=keys, metric=metric)
        text = "One line per trial; light is a high value, dashed a pruned trial."
        yield ChartGroup(title="Parallel coordinates", text=text, pictures=[drawn])
        text = f"Best {metric} of each trial; pruned ones in ochre."
        pictures = [_against_key(known, key, metric) for key in keys]
        yield ChartGroup(title=f"{metric} against each key", text=text, pictures=pictures)
    shares = importances([outcome for outcome, _ in known], board)
    if shares:
        text = "How much of the differences each key explains (fANOVA over the trials that were trained to their end)."
        yield ChartGroup(title="Importance", text=text, pictures=[importance_bars(shares)])
    text = "All trials over each other, with their numbers; a cross ends a pruned one."
    curves = [_curve(folder, outcome, board) for outcome, _ in known]
    yield ChartGroup(title=f"{metric} over the epochs", text=text, pictures=[metric_by_epoch(curves, metric)])


def _against_key(known: Sequence[tuple[TrialOutcome, float]], key: str, metric: str) -> Picture:
    having = [(outcome, score) for outcome, score in known if key in outcome.trial.values]
    return metric_against_key(
        [outcome.trial.values[key] for outcome, _ in having],
        [score for _, score in having],
        [outcome.status == "pruned" for outcome, _ in having],
        key=key,
        metric=metric,
    )


def _curve(folder: SweepFolder, outcome: TrialOutcome, board: Leaderboard) -> TrialCurve:
    rows = epochs_of(folder.run_dir(outcome.trial))
    points = [(row["epoch"], value_of(row, board.metrics[0], board.directions[0])) for row in rows]
    there = [(epoch, value) for epoch, value in points if value is not None]
    return TrialCurve(
        number=outcome.trial.number,
        epochs=[epoch for epoch, _ in there],
        values=[value for _, value in there],
        is_pruned=outcome.status == "pruned",
    )


def importances(outcomes: Sequence[TrialOutcome], board: Leaderboard) -> dict[str, float]:
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
