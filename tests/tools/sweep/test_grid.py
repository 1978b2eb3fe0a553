from __future__ import annotations

import pytest

from runner.base.errors import ConfigError
from runner.tools.sweep.axes import Axis, Between, Choices
from runner.tools.sweep.grid import combinations


def axis(key: str, *values: str, when: dict | None = None) -> Axis:
    return Axis(key=key, override=key, values=Choices(values=values), when=when or {})


def test_the_last_key_changes_fastest():
    found = combinations([axis("a", "1", "2"), axis("b", "x", "y")], ())
    assert [tuple(values.values()) for values in found] == [("1", "x"), ("1", "y"), ("2", "x"), ("2", "y")]


def test_paired_keys_go_together_and_with_all_others():
    axes = [axis("lr", "0.1", "0.2"), axis("seed", "1", "2"), axis("batch", "8", "16")]
    found = combinations(axes, [["lr", "batch"]])
    assert found == [
        {"lr": "0.1", "seed": "1", "batch": "8"},
        {"lr": "0.1", "seed": "2", "batch": "8"},
        {"lr": "0.2", "seed": "1", "batch": "16"},
        {"lr": "0.2", "seed": "2", "batch": "16"},
    ]


def test_a_key_that_does_not_apply_makes_no_further_trials():
    axes = [axis("optimizer", "sgd", "adamw"), axis("momentum", "0.5", "0.9", when={"optimizer": ("sgd",)})]
    assert combinations(axes, ()) == [
        {"optimizer": "sgd", "momentum": "0.5"},
        {"optimizer": "sgd", "momentum": "0.9"},
        {"optimizer": "adamw"},
    ]


def test_more_trials_than_anybody_could_train_are_refused():
    values = tuple(map(str, range(1000)))
    with pytest.raises(ConfigError, match="the grid has 1,000,000 combinations"):
        combinations([axis("a", *values), axis("b", *values)], ())


def test_nothing_that_varies_is_one_trial():
    assert combinations([], ()) == [{}]


@pytest.mark.parametrize(
    ("zipped", "message"),
    [
        ([["lr", "seed"]], "lr has 2 values, seed has 3 values"),
        ([["lr", "batch"]], "'batch' does not vary in this sweep; there are lr, seed"),
        ([["lr", "lr"]], "lr is paired twice"),
    ],
)
def test_pairs_that_do_not_fit_are_refused(zipped, message):
    with pytest.raises(ConfigError, match=message):
        combinations([axis("lr", "0.1", "0.2"), axis("seed", "1", "2", "3")], zipped)


def test_a_range_without_steps_is_no_grid():
    lr = Axis(key="lr", override="lr", values=Between(low=0, high=1))
    with pytest.raises(ConfigError, match="hydra/sweeper=tpe"):
        combinations([lr], ())
