"""Several values of a key for a command that starts from a saved config: one call per combination."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

from hydra.core.override_parser.types import QuotedString, Transformer

from runner.base.errors import ConfigError, Problem
from runner.config.arguments import MULTIRUN
from runner.config.overrides import PATH_KEYS, as_typed, parsed_override
from runner.config.refusal import COMMAND_LINE

_MAX_CALLS = 100_000


def combinations(argv: Sequence[str]) -> list[list[str]]:
    """The arguments of each call that `argv` describes; without -m it describes one.

    Hydra's way: `-m run=a,b split=val,test` is four calls, the last key changing fastest.

    Raises:
        ConfigError: when an override can't be read, or the calls are too many to be listed.
    """
    rest = [argument for argument in argv if argument not in MULTIRUN]
    if len(rest) == len(argv):
        return [rest]
    choices = [_choices(argument) for argument in rest]
    if (num_calls := math.prod(map(len, choices))) > _MAX_CALLS:
        message = f"-m describes {num_calls:,} calls; {_MAX_CALLS:,} are allowed"
        raise ConfigError([Problem(key="", message=message, origin=COMMAND_LINE)])
    return [list(choice) for choice in itertools.product(*choices)]


def _choices(argument: str) -> list[str]:
    if argument.startswith("-") or "=" not in argument:
        return [argument]
    override = parsed_override(as_typed(argument, is_swept=True))
    if not override.is_sweep_override():
        return [argument]
    if not override.is_discrete_sweep():
        raise ConfigError([Problem(key="", message=f"{argument!r}: list the values, KEY=A,B,C", origin=COMMAND_LINE)])
    key = argument.partition("=")[0]
    if key in PATH_KEYS:
        values = override.sweep_iterator(Transformer.identity)
        return [f"{key}={value.text if isinstance(value, QuotedString) else value}" for value in values]
    return [f"{key}={value}" for value in override.sweep_string_iterator()]
