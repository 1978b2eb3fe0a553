"""Axes of a sweep as Optuna's distributions, proposals as values of the axes, and values as Optuna's parameters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import assert_never

from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
    check_distribution_compatibility,
)
from optuna.trial import Trial as StudyTrial

from runner.base.errors import ConfigError, Problem
from runner.config.schema.sweep import SweepConfig
from runner.tools.sweep.axes import Axis, Choices, Interval, Normal, override_value

_SMALLEST_QUANTILE = 1e-6


def starting_points(sweep: SweepConfig, axes: Sequence[Axis]) -> list[dict[str, object]]:
    """`sweep.starting_points` as parameters for Optuna.

    Raises:
        ConfigError: a starting point does not fit the space.
    """
    by_key = {axis.key: axis for axis in axes}
    found = []
    for number, point in enumerate(sweep.starting_points):
        unknown = [key for key in point if key not in by_key]
        if unknown:
            message = f"{unknown[0]!r} does not vary in this sweep; there are {', '.join(by_key)}"
            raise ConfigError([Problem(key=f"sweep.starting_points.{number}", message=message)])
        found.append(
            {
                key: _parameter(by_key[key], value, f"sweep.starting_points.{number}.{key}")
                for key, value in point.items()
            }
        )
    return found


def proposed_values(trial: StudyTrial, axes: Sequence[Axis]) -> dict[str, str]:
    """The proposal for each axis that applies, as it would be typed."""
    chosen: dict[str, str] = {}
    for axis in axes:
        if axis.applies(chosen):
            chosen[axis.key] = _suggested(trial, axis)
    return chosen


def known_parameters(
    values: Mapping[str, str], axes: Sequence[Axis]
) -> tuple[dict[str, object], dict[str, BaseDistribution]]:
    """Typed values as Optuna's parameters with their distributions; values outside of the bounds are left out."""
    parameters: dict[str, object] = {}
    distributions: dict[str, BaseDistribution] = {}
    for axis in axes:
        if axis.key in values:
            is_choice = isinstance(axis.values, Choices)
            value = values[axis.key] if is_choice else float(values[axis.key])
            with suppress(ConfigError):  # the bounds have changed since
                parameters[axis.key] = _parameter(axis, value, axis.key)
                distributions[axis.key] = _distribution(axis)
    return parameters, distributions


def refuse_other_space(known: Mapping[str, BaseDistribution], axes: Sequence[Axis]) -> None:
    """Refuse to continue a search whose axes have other choices or another kind of numbers; bounds may change.

    Args:
        known: the distributions of a recorded trial.
        axes: the axes as they are typed now.

    Raises:
        ConfigError: with all keys that have changed so.
    """
    problems = []
    for axis in axes:
        try:
            if axis.key in known:
                check_distribution_compatibility(known[axis.key], _distribution(axis))
        except ValueError:
            message = "this search was begun with other choices, or another kind of numbers"
            hint = "begin a new one, with another sweep.dir or sweep.study"
            problems.append(Problem(key=axis.key, message=message, hint=hint))
    if problems:
        raise ConfigError(problems)


def _distribution(axis: Axis) -> BaseDistribution:
    match axis.values:
        case Choices(values=values):
            return CategoricalDistribution(values)
        case Interval(low=low, high=high, is_whole=True):
            return IntDistribution(int(low), int(high), log=axis.values.is_log)
        case Interval(low=low, high=high):
            return FloatDistribution(low, high, log=axis.values.is_log)
        case Normal():
            return FloatDistribution(_SMALLEST_QUANTILE, 1 - _SMALLEST_QUANTILE)
        case _:
            assert_never(axis.values)


def _suggested(trial: StudyTrial, axis: Axis) -> str:
    match axis.values:
        case Choices(values=values):
            return str(trial.suggest_categorical(axis.key, values))
        case Interval(low=low, high=high, is_whole=True):
            return str(trial.suggest_int(axis.key, int(low), int(high), log=axis.values.is_log))
        case Interval(low=low, high=high):
            return override_value(axis.values.rounded(trial.suggest_float(axis.key, low, high, log=axis.values.is_log)))
        case Normal():
            # Optuna has no normal distribution: it searches the cumulative probability.
            return override_value(
                axis.values.quantile(trial.suggest_float(axis.key, _SMALLEST_QUANTILE, 1 - _SMALLEST_QUANTILE))
            )
        case _:
            assert_never(axis.values)


def _parameter(axis: Axis, value: object, where: str) -> object:
    """A value of a starting point or a record as Optuna's parameter.

    Raises:
        ConfigError: the axis can't have this value.
    """
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    match axis.values:
        case Choices(values=values):
            typed = (
                override_value(value) if value is None or isinstance(value, bool | int | float | str) else str(value)
            )
            found = [choice for choice in values if choice in (typed, value) or _same_number(choice, value)]
            if found:
                return found[0]
            message = f"must be one of {', '.join(values)}"
        case Interval(low=low, high=high, is_whole=is_whole):
            if is_number and low <= float(str(value)) <= high:
                return int(float(str(value))) if is_whole else float(str(value))
            message = f"must be a number from {low:g} to {high:g}"
        case Normal():
            if is_number:
                quantile = axis.values.cdf(float(str(value)))
                return min(max(quantile, _SMALLEST_QUANTILE), 1 - _SMALLEST_QUANTILE)
            message = "must be a number"
        case _:
            assert_never(axis.values)
    raise ConfigError([Problem(key=where, value=value, has_value=True, message=message)])


def _same_number(typed: str, value: object) -> bool:
    if not isinstance(value, int | float) or isinstance(value, bool):
        return False
    try:
        return float(typed) == value
    except ValueError:
        return False
