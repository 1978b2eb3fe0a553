"""A grid: every combination of the values, some keys paired by `sweep.zip`."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

from runner.base.errors import ConfigError, Problem
from runner.config.refusal import COMMAND_LINE
from runner.tools.sweep.axes import Axis, Choices

_MAX_TRIALS = 100_000


def combinations(axes: Sequence[Axis], zipped: Sequence[Sequence[str]]) -> list[dict[str, str]]:
    """The values of each trial by key, in Hydra's order: the last key changes fastest.

    Args:
        axes: what varies.
        zipped: keys that go together, the first value of one with the first of the others and so on.

    Raises:
        ConfigError: an axis that is no list of values, zipped keys that don't fit, or more combinations than could ever
            be trained.
    """
    problems = [_is_no_list(axis) for axis in axes if not isinstance(axis.values, Choices)]
    by_key = {axis.key: axis.values.values for axis in axes if isinstance(axis.values, Choices)}
    if not problems:
        problems = [problem for keys in zipped for problem in _misfits(keys, by_key)]
        problems += _twice([key for keys in zipped for key in keys])
    if problems:
        raise ConfigError(problems)
    bundle_of = {key: tuple(keys) for keys in zipped for key in keys}
    bundles = list(dict.fromkeys(bundle_of.get(key, (key,)) for key in by_key))
    choices = [list(zip(*(by_key[key] for key in keys), strict=True)) for keys in bundles]
    if (num_trials := math.prod(map(len, choices))) > _MAX_TRIALS:
        message = f"the grid has {num_trials:,} combinations; {_MAX_TRIALS:,} are allowed"
        hint = "search it: hydra/sweeper=tpe or hydra/sweeper=random"
        raise ConfigError([Problem(key="", message=message, hint=hint, origin=COMMAND_LINE)])
    order = {axis.key: axis for axis in axes}
    found = []
    for picked in itertools.product(*choices):
        values = {
            key: value
            for keys, pick in zip(bundles, picked, strict=True)
            for key, value in zip(keys, pick, strict=True)
        }
        found.append({key: values[key] for key, axis in order.items() if axis.applies(values)})
    return list({tuple(values.items()): values for values in found}.values())


def _is_no_list(axis: Axis) -> Problem:
    return Problem(
        key=axis.key,
        message="a grid needs a list of values, and this is a range without steps",
        hint="give a,b,c or range(start,stop,step), or search it: hydra/sweeper=tpe or hydra/sweeper=random",
        origin=COMMAND_LINE,
    )


def _misfits(keys: Sequence[str], by_key: dict[str, tuple[str, ...]]) -> list[Problem]:
    missing = [key for key in keys if key not in by_key]
    if missing:
        there = ", ".join(by_key) or "none"
        message = f"{missing[0]!r} does not vary in this sweep; there are {there}"
        return [Problem(key="sweep.zip", value=list(keys), has_value=True, message=message)]
    lengths = {key: len(by_key[key]) for key in keys}
    if len(set(lengths.values())) == 1:
        return []
    told = ", ".join(f"{key} has {length} values" for key, length in lengths.items())
    message = f"paired keys need equally many values, but {told}"
    return [Problem(key="sweep.zip", value=list(keys), has_value=True, message=message)]


def _twice(keys: Sequence[str]) -> list[Problem]:
    again = sorted({key for key in keys if keys.count(key) > 1})
    return [
        Problem(key="sweep.zip", message=f"{key} is paired twice; write all its partners into one list")
        for key in again
    ]
