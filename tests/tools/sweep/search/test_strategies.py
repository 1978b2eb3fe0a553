"""When a policy ends a trial; the values are those of Azure's documentation where it gives some."""

from __future__ import annotations

import optuna
import pytest
from optuna.trial import TrialState, create_trial

from runner.library import load_config
from runner.tools.sweep.search.strategies import BanditPruner, TruncationPruner, build_pruner


def study(direction: str, *trials: tuple[TrialState, dict[int, float]]) -> optuna.Study:
    # Hyperband chooses a trial's bracket by the name of the study, which is random unless it is given.
    made = optuna.create_study(direction=direction, study_name="study")
    for state, values in trials:
        value = list(values.values())[-1] if state == TrialState.COMPLETE else None
        made.add_trial(create_trial(state=state, value=value, intermediate_values=values))
    return made


def ends(pruner: optuna.pruners.BasePruner, made: optuna.Study, number: int) -> bool:
    return pruner.prune(made, made.trials[number])


RUNNING, COMPLETE = TrialState.RUNNING, TrialState.COMPLETE


@pytest.mark.parametrize(("own", "expected"), [(0.66, True), (0.67, False)])
def test_bandit_factor_maximised(own, expected):
    # Azure's example: the best is 0.8 at this interval, slack 0.2: below 0.8 / 1.2 = 0.667 ends.
    made = study("maximize", (COMPLETE, {10: 0.8, 11: 0.99}), (RUNNING, {10: own}))
    assert ends(BanditPruner(slack_factor=0.2, slack_amount=None), made, 1) is expected


@pytest.mark.parametrize(("own", "expected"), [(0.61, True), (0.59, False)])
def test_bandit_factor_minimised(own, expected):
    made = study("minimize", (COMPLETE, {1: 0.5, 2: 0.1}), (RUNNING, {1: own}))
    assert ends(BanditPruner(slack_factor=0.2, slack_amount=None), made, 1) is expected


@pytest.mark.parametrize(
    ("direction", "own", "expected"),
    [("maximize", 0.59, True), ("maximize", 0.61, False), ("minimize", 1.01, True), ("minimize", 0.99, False)],
)
def test_bandit_amount(direction, own, expected):
    made = study(direction, (COMPLETE, {1: 0.8}), (RUNNING, {1: own}))
    assert ends(BanditPruner(slack_factor=None, slack_amount=0.2), made, 1) is expected


def test_bandit_counts_the_best_of_a_trial_and_spares_the_best_of_all():
    made = study("maximize", (COMPLETE, {1: 0.7}), (RUNNING, {1: 0.9, 2: 0.1}))
    assert not ends(BanditPruner(slack_factor=0.01, slack_amount=None), made, 1)


def test_truncation_ends_the_worst_share_of_those_that_run():
    running = [(RUNNING, {1: value}) for value in (0.5, 0.1, 0.9, 0.2, 0.3)]
    made = study("maximize", (COMPLETE, {1: 0.01}), *running)
    assert [ends(TruncationPruner(40), made, number) for number in range(1, 6)] == [False, True, False, True, False]
    lower_is_better = study("minimize", *running)
    ended = [ends(TruncationPruner(20), lower_is_better, number) for number in range(5)]
    assert ended == [False, False, True, False, False]


def test_truncation_compares_those_that_have_come_as_far_and_of_equals_ends_the_later():
    made = study("maximize", (RUNNING, {1: 0.1}), (RUNNING, {1: 0.5, 2: 0.5}), (RUNNING, {1: 0.9, 2: 0.5}))
    assert not ends(TruncationPruner(50), made, 2)
    assert ends(TruncationPruner(50), made, 1)
    equal = study("maximize", (RUNNING, {1: 0.5}), (RUNNING, {1: 0.5}))
    assert [ends(TruncationPruner(50), equal, number) for number in (0, 1)] == [False, True]


def test_truncation_rounds_down_so_that_a_lone_trial_is_not_pruned():
    assert not ends(TruncationPruner(99), study("maximize", (RUNNING, {1: 0.0})), 0)


@pytest.mark.parametrize("name", ["median", "percentile", "successive_halving", "hyperband"])
def test_each_policy_of_optuna_ends_a_hopeless_trial(name):
    good = [(RUNNING if "h" in name else COMPLETE, {1: 0.9, 2: 0.9, 3: 0.9}) for _ in range(12)]
    made = study("maximize", *good, (RUNNING, {1: 0.1, 2: 0.1, 3: 0.1}), (RUNNING, {1: 0.95, 2: 0.95, 3: 0.95}))
    sweep = load_config(["data=synthetic", f"sweep.pruner={name}", "sweep.pruning.reduction_factor=2"]).sweep
    pruner = build_pruner(sweep, max_epochs=4)
    if "h" in name:  # halving notes on each trial how far it has come
        for number in range(12):
            pruner.prune(made, made.trials[number])
    assert ends(pruner, made, 12)
    assert not ends(pruner, made, 13)
