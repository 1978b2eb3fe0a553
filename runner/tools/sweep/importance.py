"""How much of the differences between trials each key explains, by Optuna where it is there."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence

from runner.tools.sweep.leaderboard import Leaderboard
from runner.tools.sweep.outcome import Outcome
from runner.tools.sweep.pictures import positions

_FEWEST_TRIALS = 4
_SEED = 0


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
