"""What varies in a sweep, read from Hydra's grammar on the command line and from `sweep.space`; and the grid of it."""

from __future__ import annotations

import itertools
import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import NormalDist
from typing import assert_never

from hydra.core.override_parser.types import IntervalSweep, Override

from runner.base.errors import ConfigError, Problem
from runner.config.hydra_errors import COMMAND_LINE, without_plus
from runner.config.schema.sweep import (
    ChoiceSpace,
    NormalSpace,
    QuantizedNormalSpace,
    QuantizedUniformSpace,
    Scalar,
    Space,
    UniformSpace,
)

# Text that needs no quotes in Hydra's grammar.
_UNQUOTED = re.compile(r"[A-Za-z_][\w.-]*", re.ASCII)
_HYDRA_LITERALS = ("null", "true", "false", "nan", "inf")
_MAX_GRID_TRIALS = 100_000


@dataclass(frozen=True, kw_only=True)
class Choices:
    """A list of values, as they would be typed."""

    values: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Interval:
    """A number in [low, high]."""

    low: float
    high: float
    is_log: bool = False
    is_whole: bool = False
    step: float | None = None

    def rounded(self, value: float) -> float:
        """The nearest multiple of the step within the bounds; without a step the value itself."""
        if self.step is None:
            return value
        multiple = _multiple(value, self.step)
        if multiple > self.high:
            multiple = _multiple(math.floor(self.high / self.step) * self.step, self.step)
        return self.low if multiple < self.low else multiple


@dataclass(frozen=True, kw_only=True)
class Normal:
    """A normally distributed number; with `is_log`, one whose logarithm is normally distributed."""

    mu: float
    sigma: float
    is_log: bool = False
    step: float | None = None

    def quantile(self, probability: float) -> float:
        """The value below which a drawn number lies with this probability, in (0, 1)."""
        value = NormalDist(self.mu, self.sigma).inv_cdf(probability)
        value = math.exp(value) if self.is_log else value
        return value if self.step is None else _multiple(value, self.step)

    def cdf(self, value: float) -> float:
        """The inverse of :meth:`quantile`, without rounding to steps; 0 for a value <= 0 where `is_log`."""
        if self.is_log and value <= 0:
            return 0.0
        return NormalDist(self.mu, self.sigma).cdf(math.log(value) if self.is_log else value)


@dataclass(frozen=True, kw_only=True)
class Axis:
    """One key that varies."""

    key: str
    """Full key, such as `optimizer.lr`."""
    override: str
    """What stands before the equals sign of an override for Hydra, such as `++optimizer.lr`."""
    values: Choices | Interval | Normal
    when: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Condition: the key varies only where these other axes have one of these values."""

    def applies(self, chosen: Mapping[str, str]) -> bool:
        """Whether this key varies, given the values of the axes before it."""
        return all(chosen.get(key) in allowed for key, allowed in self.when.items())


def axes_of(overrides: Sequence[Override], space: Mapping[str, Space]) -> tuple[list[str], list[Axis]]:
    """Split overrides into those that all trials share and those that vary.

    Args:
        overrides: parsed by Hydra.
        space: `sweep.space`.

    Returns:
        The shared overrides, and one axis per key, those of the command line first.

    Raises:
        ConfigError: a key that varies both on the command line and in `sweep.space`, a key that belongs to the sweep
            itself, or a condition on a key that does not vary before it.
    """
    shared: dict[str, str] = {}
    axes: dict[str, Axis] = {}
    for override in overrides:
        element = override.get_key_element()
        if override.is_sweep_override():
            axes[element] = Axis(key=without_plus(element), override=element, values=_typed_values(override))
            shared.pop(element, None)
        else:
            shared[element] = override.input_line or ""
            axes.pop(element, None)
    found = [*axes.values(), *(_space_axis(key, entry) for key, entry in space.items())]
    problems = list(_problems(found))
    if problems:
        raise ConfigError(problems)
    # A single value that is typed replaces a search over that key in `sweep.space`.
    typed = {without_plus(element) for element in shared}
    return list(shared.values()), [axis for axis in found if axis.key not in typed]


def _problems(axes: Sequence[Axis]) -> list[Problem]:
    problems, seen = [], set[str]()
    for axis in axes:
        if axis.key.split(".")[0] in ("sweep", "hydra", "output_dir"):
            problems.append(Problem(key=axis.key, message="is the same for all trials of a sweep; give it one value"))
        if axis.key in seen:
            message = "varies on the command line and in sweep.space; leave one of them out"
            problems.append(Problem(key=axis.key, message=message))
        unknown = [key for key in axis.when if key not in seen]
        if unknown:
            message = f"no key of this name varies before {axis.key}"
            problems.append(Problem(key=f"sweep.space.{axis.key}.when.{unknown[0]}", message=message))
        seen.add(axis.key)
    return problems


def _typed_values(override: Override) -> Choices | Interval:
    value = override.value()
    if isinstance(value, IntervalSweep):
        assert value.start is not None and value.end is not None
        if value.start >= value.end or (value.start <= 0 and "log" in value.tags):
            message = "must begin below its end, and on a logarithmic scale above 0"
            key = without_plus(override.input_line or "")
            raise ConfigError([Problem(key=key, message=message, origin=COMMAND_LINE)])
        is_whole = isinstance(value.start, int)
        return Interval(low=value.start, high=value.end, is_log="log" in value.tags, is_whole=is_whole)
    return Choices(values=tuple(override.sweep_string_iterator()))


def _space_axis(key: str, entry: Space) -> Axis:
    when = {
        other: tuple(map(override_value, allowed if isinstance(allowed, tuple) else (allowed,)))
        for other, allowed in entry.when.items()
    }
    return Axis(key=key, override=element_of(key), values=_values(entry), when=when)


def element_of(key: str) -> str:
    """What stands before the equals sign of an override for Hydra: groups as they are, values with `++`."""
    return f"++{key}" if "." in key or key == "seed" else key


def _values(entry: Space) -> Choices | Interval | Normal:
    match entry:
        case ChoiceSpace():
            return Choices(values=tuple(map(override_value, entry.values)))
        case UniformSpace():
            return Interval(low=entry.low, high=entry.high, is_log=entry.kind == "loguniform")
        case QuantizedUniformSpace():
            return Interval(low=entry.low, high=entry.high, is_log=entry.kind == "qloguniform", step=entry.step)
        case NormalSpace():
            return Normal(mu=entry.mu, sigma=entry.sigma, is_log=entry.kind == "lognormal")
        case QuantizedNormalSpace():
            return Normal(mu=entry.mu, sigma=entry.sigma, is_log=entry.kind == "qlognormal", step=entry.step)
        case _:
            assert_never(entry)


def override_value(value: Scalar) -> str:
    """A value as it would be typed; whole floats without a point, so that integer keys accept them."""
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
        return str(int(value))
    if isinstance(value, str):
        is_plain = _UNQUOTED.fullmatch(value) and value.lower() not in _HYDRA_LITERALS
        return value if is_plain else "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"
    return json.dumps(value) if value is None or isinstance(value, bool) else repr(value)


def _multiple(value: float, step: float) -> float:
    # Divided rather than multiplied where the step is a decimal fraction, so that 3 × 0.1 is 0.3.
    count, inverse = round(value / step), round(1 / step)
    return count / inverse if inverse and math.isclose(1 / step, inverse) else count * step


def bounds(axis: Axis) -> list[str]:
    """Values to check before a sweep starts: each choice, both ends of an interval, three quantiles of a normal."""
    match axis.values:
        case Choices(values=values):
            return list(values)
        case Interval(low=low, high=high, is_whole=is_whole):
            ends = (low, high) if is_whole else (axis.values.rounded(low), axis.values.rounded(high))
            return [override_value(end) for end in ends]
        case Normal():
            return [override_value(axis.values.quantile(probability)) for probability in (0.1, 0.5, 0.9)]
        case _:
            assert_never(axis.values)


def grid_points(axes: Sequence[Axis], zipped: Sequence[Sequence[str]]) -> list[dict[str, str]]:
    """The values of each trial of a grid by key, in Hydra's order: the last key changes fastest.

    Args:
        axes: what varies.
        zipped: `sweep.zip`; the keys of one list take their first values together, then their second, and so on.

    Raises:
        ConfigError: an axis that is no list of values, zipped keys that don't vary, have different numbers of values
            or stand in two lists, or more than 100,000 combinations.
    """
    problems = [
        Problem(
            key=axis.key,
            message="a grid needs a list of values, and this is a range without steps",
            hint="give a,b,c or range(start,stop,step), or search it: hydra/sweeper=tpe or hydra/sweeper=random",
            origin=COMMAND_LINE,
        )
        for axis in axes
        if not isinstance(axis.values, Choices)
    ]
    by_key = {axis.key: axis.values.values for axis in axes if isinstance(axis.values, Choices)}
    if not problems:
        problems = [problem for keys in zipped for problem in _misfits(keys, by_key)]
        paired = [key for keys in zipped for key in keys]
        for key in sorted({key for key in paired if paired.count(key) > 1}):
            message = f"{key} is paired twice; write all its partners into one list"
            problems.append(Problem(key="sweep.zip", message=message))
    if problems:
        raise ConfigError(problems)
    bundle_of = {key: tuple(keys) for keys in zipped for key in keys}
    bundles = list(dict.fromkeys(bundle_of.get(key, (key,)) for key in by_key))
    choices = [list(zip(*(by_key[key] for key in keys), strict=True)) for keys in bundles]
    if (num_trials := math.prod(map(len, choices))) > _MAX_GRID_TRIALS:
        message = f"the grid has {num_trials:,} combinations; {_MAX_GRID_TRIALS:,} are allowed"
        hint = "search it: hydra/sweeper=tpe or hydra/sweeper=random"
        raise ConfigError([Problem(key="", message=message, hint=hint, origin=COMMAND_LINE)])
    found = []
    for picked in itertools.product(*choices):
        values = {
            key: value
            for keys, pick in zip(bundles, picked, strict=True)
            for key, value in zip(keys, pick, strict=True)
        }
        found.append({axis.key: values[axis.key] for axis in axes if axis.applies(values)})
    return list({tuple(values.items()): values for values in found}.values())


def _misfits(keys: Sequence[str], by_key: dict[str, tuple[str, ...]]) -> list[Problem]:
    missing = [key for key in keys if key not in by_key]
    if missing:
        varying = ", ".join(by_key) or "none"
        message = f"{missing[0]!r} does not vary in this sweep; there are {varying}"
        return [Problem(key="sweep.zip", value=list(keys), has_value=True, message=message)]
    lengths = {key: len(by_key[key]) for key in keys}
    if len(set(lengths.values())) == 1:
        return []
    counts = ", ".join(f"{key} has {length} values" for key, length in lengths.items())
    message = f"paired keys need equally many values, but {counts}"
    return [Problem(key="sweep.zip", value=list(keys), has_value=True, message=message)]
