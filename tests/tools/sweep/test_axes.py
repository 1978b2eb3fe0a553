from __future__ import annotations

import math

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser
from pydantic import TypeAdapter

from runner.base.errors import ConfigError
from runner.config.schema.sweep import Space
from runner.tools.sweep.axes import Axis, Choices, Interval, Normal, axes_of, bounds, grid_points, override_value


def typed(*overrides: str, space: dict | None = None) -> tuple[list[str], list[Axis]]:
    entries = {key: TypeAdapter(Space).validate_python(entry) for key, entry in (space or {}).items()}
    return axes_of(OverridesParser.create().parse_overrides(list(overrides)), entries)


@pytest.mark.parametrize(
    ("override", "values"),
    [
        ("a.b=1,2.5,x", Choices(values=("1", "2.5", "x"))),
        ("a.b=choice(true,x)", Choices(values=("True", "x"))),  # as Hydra writes it for its own sweeper
        ("a.b=range(1,7,2)", Choices(values=("1", "3", "5"))),
        ("a.b=range(0,0.3,0.1)", Choices(values=("0.0", "0.1", "0.2"))),
        ("a.b=interval(0,1)", Interval(low=0.0, high=1.0)),
        ("a.b=int(interval(1,8))", Interval(low=1, high=8, is_whole=True)),
        ("a.b=tag(log,interval(1e-4,1))", Interval(low=1e-4, high=1.0, is_log=True)),
        ("a.b=tag(log,int(interval(1,64)))", Interval(low=1, high=64, is_log=True, is_whole=True)),
        ("a.b='x y',z", Choices(values=("'x y'", "z"))),
    ],
)
def test_hydras_grammar(override, values):
    shared, axes = typed("c.d=4", f"++{override}")
    assert shared == ["c.d=4"]
    assert [(axis.key, axis.override, axis.values) for axis in axes] == [("a.b", "++a.b", values)]


@pytest.mark.parametrize(
    ("entry", "values"),
    [
        (
            {"kind": "choice", "values": (1, 0.5, None, True, "a b")},
            Choices(values=("1", "0.5", "null", "true", "'a b'")),
        ),
        ({"kind": "uniform", "low": 0.0, "high": 1.0}, Interval(low=0, high=1)),
        ({"kind": "loguniform", "low": 0.1, "high": 1.0}, Interval(low=0.1, high=1, is_log=True)),
        ({"kind": "quniform", "low": 0.0, "high": 64.0, "step": 8.0}, Interval(low=0, high=64, step=8)),
        ({"kind": "qloguniform", "low": 1.0, "high": 64.0, "step": 8.0}, Interval(low=1, high=64, step=8, is_log=True)),
        ({"kind": "normal", "mu": 1.0, "sigma": 2.0}, Normal(mu=1, sigma=2)),
        ({"kind": "lognormal", "mu": 1.0, "sigma": 2.0}, Normal(mu=1, sigma=2, is_log=True)),
        ({"kind": "qnormal", "mu": 1.0, "sigma": 2.0, "step": 0.5}, Normal(mu=1, sigma=2, step=0.5)),
        ({"kind": "qlognormal", "mu": 1.0, "sigma": 2.0, "step": 0.5}, Normal(mu=1, sigma=2, step=0.5, is_log=True)),
    ],
)
def test_every_kind_of_space(entry, values):
    _, (axis,) = typed(space={"optimizer.lr": entry})
    assert (axis.key, axis.values) == ("optimizer.lr", values)


def test_quantised_values_are_multiples_within_the_bounds_and_whole_numbers_stay_whole():
    between = Interval(low=5, high=30, step=8)
    assert [between.rounded(value) for value in (5, 6, 13, 29, 30)] == [8, 8, 16, 24, 24]
    assert override_value(between.rounded(13)) == "16"
    assert [Interval(low=0, high=1, step=0.1).rounded(value) for value in (0.29, 0.31, 0.71)] == [0.3, 0.3, 0.7]


def test_the_bell_curve_by_its_quantiles():
    bell = Normal(mu=2, sigma=3)
    assert bell.quantile(0.5) == pytest.approx(2)
    assert bell.quantile(0.8413447460685429) == pytest.approx(5)
    assert Normal(mu=2, sigma=3, is_log=True).quantile(0.5) == pytest.approx(math.exp(2))
    assert Normal(mu=2, sigma=3, step=0.25).quantile(0.6) == 2.75
    assert bell.cdf(bell.quantile(0.3)) == pytest.approx(0.3)
    assert Normal(mu=2, sigma=3, is_log=True).cdf(-1) == 0


def test_a_condition_decides_where_a_key_varies():
    space = {
        "optimizer": {"kind": "choice", "values": ("sgd", "adamw")},
        "optimizer.momentum": {"kind": "uniform", "low": 0.5, "high": 0.9, "when": {"optimizer": "sgd"}},
    }
    _, (_, momentum) = typed(space=space)
    assert momentum.applies({"optimizer": "sgd"})
    assert not momentum.applies({"optimizer": "adamw"})
    assert bounds(momentum) == ["0.5", "0.9"]
    with pytest.raises(ConfigError, match=r"no key of this name varies before optimizer\.momentum"):
        typed(space={"optimizer.momentum": space["optimizer.momentum"]})


def test_a_typed_value_stands_against_the_space_of_a_file():
    shared, axes = typed("++optimizer.lr=0.1", space={"optimizer.lr": {"kind": "uniform", "low": 0.1, "high": 0.2}})
    assert (shared, axes) == (["++optimizer.lr=0.1"], [])


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("++sweep.parallel=1,2", "the same for all trials"),
        ("++a.b=interval(2,1)", "must begin below its end"),
        ("++a.b=tag(log,interval(0,1))", "on a logarithmic scale above 0"),
    ],
)
def test_invalid_axes_are_refused(override, message):
    with pytest.raises(ConfigError, match=message):
        typed(override)


def test_a_key_varies_in_one_place():
    with pytest.raises(ConfigError, match=r"varies on the command line and in sweep\.space"):
        typed("++a.b=1,2", space={"a.b": {"kind": "uniform", "low": 0.1, "high": 0.2}})


@pytest.mark.parametrize(
    "entry",
    [
        {"kind": "uniform", "low": 2.0, "high": 1.0},
        {"kind": "loguniform", "low": 0.0, "high": 1.0},
        {"kind": "uniform", "low": 0.0, "high": 1.0, "step": 1.0},
        {"kind": "normal", "mu": 0.0, "sigma": 0.0},
        {"kind": "gamma", "low": 0.0, "high": 1.0},
    ],
)
def test_a_space_that_can_not_be_is_refused(entry):
    with pytest.raises(ValueError):
        typed(space={"a.b": entry})


def choices(key: str, *values: str, when: dict | None = None) -> Axis:
    return Axis(key=key, override=key, values=Choices(values=values), when=when or {})


def test_the_last_key_changes_fastest():
    found = grid_points([choices("a", "1", "2"), choices("b", "x", "y")], ())
    assert [tuple(values.values()) for values in found] == [("1", "x"), ("1", "y"), ("2", "x"), ("2", "y")]


def test_paired_keys_go_together_and_with_all_others():
    axes = [choices("lr", "0.1", "0.2"), choices("seed", "1", "2"), choices("batch", "8", "16")]
    found = grid_points(axes, [["lr", "batch"]])
    assert found == [
        {"lr": "0.1", "seed": "1", "batch": "8"},
        {"lr": "0.1", "seed": "2", "batch": "8"},
        {"lr": "0.2", "seed": "1", "batch": "16"},
        {"lr": "0.2", "seed": "2", "batch": "16"},
    ]


def test_a_key_that_does_not_apply_makes_no_further_trials():
    axes = [choices("optimizer", "sgd", "adamw"), choices("momentum", "0.5", "0.9", when={"optimizer": ("sgd",)})]
    assert grid_points(axes, ()) == [
        {"optimizer": "sgd", "momentum": "0.5"},
        {"optimizer": "sgd", "momentum": "0.9"},
        {"optimizer": "adamw"},
    ]


def test_a_grid_of_too_many_trials_is_refused():
    values = tuple(map(str, range(1000)))
    with pytest.raises(ConfigError, match="the grid has 1,000,000 combinations"):
        grid_points([choices("a", *values), choices("b", *values)], ())


def test_without_axes_a_grid_is_one_trial():
    assert grid_points([], ()) == [{}]


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
        grid_points([choices("lr", "0.1", "0.2"), choices("seed", "1", "2", "3")], zipped)


def test_a_range_without_steps_is_no_list_of_values():
    lr = Axis(key="lr", override="lr", values=Interval(low=0, high=1))
    with pytest.raises(ConfigError, match="hydra/sweeper=tpe"):
        grid_points([lr], ())
