"""Reads the arguments of a command: its own keys, with defaults in conf/<command>.yaml, and the other overrides."""

from __future__ import annotations

import dataclasses
import difflib
import itertools
import json
import math
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import yaml
from hydra.core.override_parser.types import Override, QuotedString, Transformer
from omegaconf import OmegaConf
from pydantic import ValidationError

from runner.base.console import show_error
from runner.base.errors import ConfigError, Problem, RunnerError, StoppedOnRequest, UsageError
from runner.config import CONF_DIR
from runner.config.arguments import MULTIRUN, check_sizes
from runner.config.hydra_errors import COMMAND_LINE, to_problem, unforeseen_problem
from runner.config.overrides import PATH_KEYS, parsed_override, quote_path
from runner.config.schema.base import ConfigSection
from runner.config.schema.calls import TAKES_EXPERIMENT
from runner.config.schema.checks.validation import MISSING, to_problems

Call = TypeVar("Call", bound=ConfigSection)
_MAX_CALLS = 100_000


def read_call(command: str, rules: type[Call], argv: Sequence[str]) -> tuple[Call, list[str]]:
    """Split arguments into the values of the command's own keys and overrides of a config.

    Returns:
        The checked values of the command, and the overrides as typed. For a command that composes an experiment,
        Hydra's flags are among them.

    Raises:
        UsageError: a flag that this command does not accept.
        ConfigError: a value of the command's own is missing or wrong.
    """
    _check_words(command, rules, argv)
    own, rest = split_own_keys(rules, argv)
    return _checked(rules, _with_typed(_defaults(command), own)), rest


def read_own(command: str, rules: type[Call], argv: Sequence[str]) -> Call:
    """The values of a command that accepts only its own keys.

    Raises:
        UsageError: a flag that this command does not accept.
        ConfigError: an unknown key, or a value that is missing or wrong.
    """
    _check_words(command, rules, argv)
    own, others = split_own_keys(rules, argv)
    problems = [_unknown_key(command, rules, argument) for argument in others]
    try:
        call = _checked(rules, _with_typed(_defaults(command), own))
    except ConfigError as error:
        raise ConfigError([*problems, *error.problems]) from None
    if problems:
        raise ConfigError(problems)
    return call


def _check_words(command: str, rules: type[ConfigSection], argv: Sequence[str]) -> None:
    check_sizes(argv)
    flags = [argument for argument in argv if argument.startswith("-")]
    if command in TAKES_EXPERIMENT:
        if sweep := MULTIRUN & set(flags):
            raise UsageError(f"{command} takes one experiment, not the sweep of {min(sweep)}")
        return
    if flags:
        raise UsageError(f"{command} takes KEY=VALUE only, not {flags[0]}")
    bare = [argument for argument in argv if "=" not in argument and not argument.startswith("~")]
    if bare:
        first_key = next(iter(rules.model_fields))
        raise UsageError(f"{bare[0]!r} is no KEY=VALUE; did you mean {first_key}={bare[0]}?")


def split_own_keys(rules: type[ConfigSection], argv: Sequence[str]) -> tuple[list[str], list[str]]:
    """The arguments for the command's own keys, and the others."""
    own = [argument for argument in argv if _is_own(rules, argument.lstrip("+~").partition("=")[0])]
    return own, [argument for argument in argv if argument not in own]


def _is_own(rules: type[ConfigSection], key: str) -> bool:
    """Whether a key is the command's own: `run` of `resume` is, while `run.name` is one of the config."""
    name, _, within = key.partition(".")
    return name in rules.model_fields and not (within and name in ("run", "model"))


def _unknown_key(command: str, rules: type[ConfigSection], argument: str) -> Problem:
    key, _, value = argument.lstrip("+~").partition("=")
    if not key:
        return Problem(key="", message=f"{argument!r}: a key is missing before `=`", origin=COMMAND_LINE)
    close = difflib.get_close_matches(key, rules.model_fields, n=1)
    hint = f"did you mean {close[0]}?" if close else f"{command} takes {', '.join(rules.model_fields)}"
    return Problem(key=key, value=value, has_value=True, message="no such key", hint=hint, origin=COMMAND_LINE)


def _defaults(command: str) -> dict[str, Any]:
    values = yaml.safe_load((CONF_DIR / f"{command.replace(' ', '_')}.yaml").read_text(encoding="utf-8"))
    assert isinstance(values, dict)
    return values


def _with_typed(values: dict[str, Any], typed: Sequence[str]) -> dict[str, Any]:
    node = OmegaConf.create(values)
    for item in typed:
        override = parsed_override(quote_path(item.lstrip("+")))
        value = _single_value(override)
        try:
            OmegaConf.update(node, override.key_or_group, value, force_add=True)
        except Exception as error:
            raise ConfigError([to_problem(error, typed) or unforeseen_problem(error)]) from error
    plain = OmegaConf.to_container(node)
    assert isinstance(plain, dict)
    return {str(key): value for key, value in plain.items()}


def _single_value(override: Override) -> Any:  # noqa: ANN401 - whatever YAML can hold
    if not override.is_sweep_override():
        return override.value()
    key = override.key_or_group
    problem = Problem(
        key=key,
        value=override.get_value_string(),
        has_value=True,
        message="several values are a sweep, which this command does not do",
        hint=f"a text with a comma in it is written '{key}=\"…\"'",
        origin=COMMAND_LINE,
    )
    raise ConfigError([problem])


def _checked(rules: type[Call], values: dict[str, Any]) -> Call:
    missing = [key for key, value in values.items() if value == MISSING]
    if missing:
        raise ConfigError([Problem(key=key, message=f"needs a value: {key}=…") for key in missing])
    try:
        return rules.model_validate_json(json.dumps(values))
    except ValidationError as error:
        problems = to_problems(error, values, rules)
        raise ConfigError([dataclasses.replace(problem, origin=COMMAND_LINE) for problem in problems]) from None


def expand_multirun(argv: Sequence[str]) -> list[list[str]]:
    """The arguments of each call of a command with -m; without -m there is one call.

    As in Hydra, `-m run=a,b split=val,test` is four calls; the last key varies fastest.

    Raises:
        ConfigError: an override can't be parsed, or there are too many calls.
    """
    rest = [argument for argument in argv if argument not in MULTIRUN]
    if len(rest) == len(argv):
        return [rest]
    choices = [_choices(argument) for argument in rest]
    if (num_calls := math.prod(map(len, choices))) > _MAX_CALLS:
        message = f"-m describes {num_calls:,} calls; {_MAX_CALLS:,} are allowed"
        raise ConfigError([Problem(key="", message=message, origin=COMMAND_LINE)])
    return [list(choice) for choice in itertools.product(*choices)]


def call_each(argv: Sequence[str], function: Callable[[list[str]], None]) -> None:
    """Call a function with the arguments of each call that -m describes; after an error the other calls still run.

    Raises:
        RunnerError: the first error. A stop request ends the other calls too.
    """
    calls = expand_multirun(argv)
    failures: list[RunnerError] = []
    for arguments in calls:
        try:
            function(arguments)
        except RunnerError as error:
            if len(calls) == 1 or isinstance(error, StoppedOnRequest):
                raise
            show_error(error)
            failures.append(error)
    if failures:
        raise failures[0]


def _choices(argument: str) -> list[str]:
    if argument.startswith("-") or "=" not in argument:
        return [argument]
    override = parsed_override(quote_path(argument, is_swept=True))
    if not override.is_sweep_override():
        return [argument]
    if not override.is_discrete_sweep():
        raise ConfigError([Problem(key="", message=f"{argument!r}: list the values, KEY=A,B,C", origin=COMMAND_LINE)])
    key = argument.partition("=")[0]
    if key in PATH_KEYS:
        values = override.sweep_iterator(Transformer.identity)
        return [f"{key}={value.text if isinstance(value, QuotedString) else value}" for value in values]
    return [f"{key}={value}" for value in override.sweep_string_iterator()]
