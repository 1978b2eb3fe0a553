"""The axes of a sweep as parameters of Optuna: what they may be, what was proposed, and values of the user's."""

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
from runner.tools.sweep.axes import Axis, Bell, Between, Choices, as_typed

_SMALLEST_QUANTILE = 1e-6


def starting_points(sweep: SweepConfig, axes: Sequence[Axis]) -> list[dict[str, object]]:
    """The starting points as Optuna knows them.

    Raises:
        ConfigError: one that does not fit the space.
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
    """What the study proposes for each axis that applies, as it would be typed."""
    chosen: dict[str, str] = {}
    for axis in axes:
        if axis.applies(chosen):
            chosen[axis.key] = _suggested(trial, axis)
    return chosen


def known_parameters(
    values: Mapping[str, str], axes: Sequence[Axis]
) -> tuple[dict[str, object], dict[str, BaseDistribution]]:
    """Values as they would be typed, as Optuna knows them, and what they may be; none outside of the bounds."""
    parameters: dict[str, object] = {}
    distributions: dict[str, BaseDistribution] = {}
    for axis in axes:
        if axis.key in values:
            is_choice = isinstance(axis.values, Choices)
            value = values[axis.key] if is_choice else float(values[axis.key])
            with suppress(ConfigError):  # the bounds may have changed since
                parameters[axis.key] = _parameter(axis, value, axis.key)
                distributions[axis.key] = _distribution(axis)
    return parameters, distributions


def refuse_other_space(known: Mapping[str, BaseDistribution], axes: Sequence[Axis]) -> None:
    """Refuse to go on with a search whose keys have become of another kind; bounds may change.

    Args:
        known: of a trial of the search so far.
        axes: of the search as it is typed now.

    Raises:
        ConfigError: with all of these keys.
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
        case Between(low=low, high=high, is_whole=True):
            return IntDistribution(int(low), int(high), log=axis.values.is_log)
        case Between(low=low, high=high):
            return FloatDistribution(low, high, log=axis.values.is_log)
        case Bell():
            return FloatDistribution(_SMALLEST_QUANTILE, 1 - _SMALLEST_QUANTILE)
        case _:
            assert_never(axis.values)


def _suggested(trial: StudyTrial, axis: Axis) -> str:
    match axis.values:
        case Choices(values=values):
            return str(trial.suggest_categorical(axis.key, values))
        case Between(low=low, high=high, is_whole=True):
            return str(trial.suggest_int(axis.key, int(low), int(high), log=axis.values.is_log))
        case Between(low=low, high=high):
            return as_typed(axis.values.rounded(trial.suggest_float(axis.key, low, high, log=axis.values.is_log)))
        case Bell():
            # Optuna knows no bell curve: it searches the share of values below.
            return as_typed(axis.values.at(trial.suggest_float(axis.key, _SMALLEST_QUANTILE, 1 - _SMALLEST_QUANTILE)))
        case _:
            assert_never(axis.values)


def _parameter(axis: Axis, value: object, where: str) -> object:
    """A value of the user's as Optuna knows it.

    Raises:
        ConfigError: when it is none of the axis' values.
    """
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    match axis.values:
        case Choices(values=values):
            typed = as_typed(value) if value is None or isinstance(value, bool | int | float | str) else str(value)
            found = [choice for choice in values if choice in (typed, value) or _same_number(choice, value)]
            if found:
                return found[0]
            message = f"must be one of {', '.join(values)}"
        case Between(low=low, high=high, is_whole=is_whole):
            if is_number and low <= float(str(value)) <= high:
                return int(float(str(value))) if is_whole else float(str(value))
            message = f"must be a number from {low:g} to {high:g}"
        case Bell():
            if is_number:
                quantile = axis.values.share_below(float(str(value)))
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
