"""What varies in a sweep: read from Hydra's grammar on the command line and from `sweep.space`."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import NormalDist
from typing import assert_never

from hydra.core.override_parser.types import IntervalSweep, Override

from runner.base.errors import ConfigError, Problem
from runner.config.refusal import COMMAND_LINE, plain
from runner.config.schema.sweep import (
    ChoiceSpace,
    NormalSpace,
    QuantizedNormalSpace,
    QuantizedUniformSpace,
    Scalar,
    Space,
    UniformSpace,
)

# Text that Hydra's grammar reads as it stands.
_PLAIN = re.compile(r"[A-Za-z_][\w.-]*", re.ASCII)
_WORDS = ("null", "true", "false", "nan", "inf")


@dataclass(frozen=True, kw_only=True)
class Choices:
    """One of some values, as they would be typed."""

    values: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Between:
    """A number from low to high."""

    low: float
    high: float
    is_log: bool = False
    is_whole: bool = False
    step: float | None = None

    def rounded(self, value: float) -> float:
        """A multiple of the step within the bounds."""
        if self.step is None:
            return value
        multiple = _multiple(value, self.step)
        if multiple > self.high:
            multiple = _multiple(math.floor(self.high / self.step) * self.step, self.step)
        return self.low if multiple < self.low else multiple


@dataclass(frozen=True, kw_only=True)
class Bell:
    """A normally distributed number, or one whose logarithm is."""

    mu: float
    sigma: float
    is_log: bool = False
    step: float | None = None

    def at(self, quantile: float) -> float:
        """The value below which this share of all values lies.

        Args:
            quantile: within (0, 1).
        """
        value = NormalDist(self.mu, self.sigma).inv_cdf(quantile)
        value = math.exp(value) if self.is_log else value
        return value if self.step is None else _multiple(value, self.step)

    def share_below(self, value: float) -> float:
        """The inverse of :meth:`at`, without rounding; 0 for what no value on a logarithmic scale can be."""
        if self.is_log and value <= 0:
            return 0.0
        return NormalDist(self.mu, self.sigma).cdf(math.log(value) if self.is_log else value)


@dataclass(frozen=True, kw_only=True)
class Axis:
    """One key that varies."""

    key: str
    """As the user knows it."""
    override: str
    """What stands before the equals sign of an override for Hydra."""
    values: Choices | Between | Bell
    when: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Only where these other axes have one of these values."""

    def applies(self, chosen: Mapping[str, str]) -> bool:
        """Whether this key varies, given what the axes before it have."""
        return all(chosen.get(key) in allowed for key, allowed in self.when.items())


def axes_of(overrides: Sequence[Override], space: Mapping[str, Space]) -> tuple[list[str], list[Axis]]:
    """Split overrides into those that all trials share and what varies.

    Args:
        overrides: parsed, for Hydra.
        space: `sweep.space`.

    Returns:
        The shared overrides, and one axis per key, those of the command line first.

    Raises:
        ConfigError: a key that varies in both places, that belongs to the sweep itself, or whose condition names no
            axis before it.
    """
    shared: dict[str, str] = {}
    axes: dict[str, Axis] = {}
    for override in overrides:
        element = override.get_key_element()
        if override.is_sweep_override():
            axes[element] = Axis(key=plain(element), override=element, values=_typed_values(override))
            shared.pop(element, None)
        else:
            shared[element] = override.input_line or ""
            axes.pop(element, None)
    found = [*axes.values(), *(_space_axis(key, entry) for key, entry in space.items())]
    problems = list(_problems(found))
    if problems:
        raise ConfigError(problems)
    # A value that is typed for all trials stands, though the file would have searched it.
    typed = {plain(element) for element in shared}
    return list(shared.values()), [axis for axis in found if axis.key not in typed]


def _problems(axes: Sequence[Axis]) -> list[Problem]:
    problems, seen = [], set[str]()
    for axis in axes:
        if axis.key.split(".")[0] in ("sweep", "hydra", "output_dir"):
            problems.append(Problem(key=axis.key, message="is the same for all trials of a sweep; give one value"))
        if axis.key in seen:
            message = "varies on the command line and in sweep.space; leave one of them out"
            problems.append(Problem(key=axis.key, message=message))
        unknown = [key for key in axis.when if key not in seen]
        if unknown:
            message = f"no key of this name varies before {axis.key}"
            problems.append(Problem(key=f"sweep.space.{axis.key}.when.{unknown[0]}", message=message))
        seen.add(axis.key)
    return problems


def _typed_values(override: Override) -> Choices | Between:
    value = override.value()
    if isinstance(value, IntervalSweep):
        assert value.start is not None and value.end is not None
        if value.start >= value.end or (value.start <= 0 and "log" in value.tags):
            raise ConfigError([_no_interval(override)])
        is_whole = isinstance(value.start, int)
        return Between(low=value.start, high=value.end, is_log="log" in value.tags, is_whole=is_whole)
    return Choices(values=tuple(override.sweep_string_iterator()))


def _no_interval(override: Override) -> Problem:
    message = "must begin below its end, and on a logarithmic scale above 0"
    return Problem(key=plain(override.input_line or ""), message=message, origin=COMMAND_LINE)


def _space_axis(key: str, entry: Space) -> Axis:
    when = {
        other: tuple(map(as_typed, allowed if isinstance(allowed, tuple) else (allowed,)))
        for other, allowed in entry.when.items()
    }
    return Axis(key=key, override=element_of(key), values=_values(entry), when=when)


def element_of(key: str) -> str:
    """What stands before the equals sign for Hydra: a group is chosen, a value is set."""
    return f"++{key}" if "." in key or key == "seed" else key


def _values(entry: Space) -> Choices | Between | Bell:
    match entry:
        case ChoiceSpace():
            return Choices(values=tuple(map(as_typed, entry.values)))
        case UniformSpace():
            return Between(low=entry.low, high=entry.high, is_log=entry.kind == "loguniform")
        case QuantizedUniformSpace():
            return Between(low=entry.low, high=entry.high, is_log=entry.kind == "qloguniform", step=entry.step)
        case NormalSpace():
            return Bell(mu=entry.mu, sigma=entry.sigma, is_log=entry.kind == "lognormal")
        case QuantizedNormalSpace():
            return Bell(mu=entry.mu, sigma=entry.sigma, is_log=entry.kind == "qlognormal", step=entry.step)
        case _:
            assert_never(entry)


def as_typed(value: Scalar) -> str:
    """A value as it would be typed on the command line; a whole number without a point, so that it fits counts."""
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
        return str(int(value))
    if isinstance(value, str):
        is_plain = _PLAIN.fullmatch(value) and value.lower() not in _WORDS
        return value if is_plain else "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"
    return json.dumps(value) if value is None or isinstance(value, bool) else repr(value)


def _multiple(value: float, step: float) -> float:
    # Divided rather than multiplied where the step is a decimal fraction, so that 3 × 0.1 is 0.3.
    count, inverse = round(value / step), round(1 / step)
    return count / inverse if inverse and math.isclose(1 / step, inverse) else count * step


def bounds(axis: Axis) -> list[str]:
    """Values of an axis that must be good ones if all are: each choice, or both ends."""
    match axis.values:
        case Choices(values=values):
            return list(values)
        case Between(low=low, high=high, is_whole=is_whole):
            ends = (low, high) if is_whole else (axis.values.rounded(low), axis.values.rounded(high))
            return [as_typed(end) for end in ends]
        case Bell():
            return [as_typed(axis.values.at(quantile)) for quantile in (0.1, 0.5, 0.9)]
        case _:
            assert_never(axis.values)
