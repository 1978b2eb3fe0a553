"""Reads what a command takes: its own keys from conf/<command>.yaml; the rest is for the config of an experiment."""

from __future__ import annotations

import dataclasses
import difflib
import json
from collections.abc import Sequence
from typing import Any, TypeVar

import yaml
from hydra.core.override_parser.types import Override
from omegaconf import OmegaConf
from pydantic import ValidationError

from runner.base.errors import ConfigError, Problem, UsageError
from runner.config import CONF_DIR
from runner.config.arguments import MULTIRUN, check_sizes
from runner.config.overrides import as_typed, parsed_override
from runner.config.refusal import COMMAND_LINE, stumbled, translate
from runner.config.schema.base import Section
from runner.config.schema.calls import TAKES_EXPERIMENT
from runner.config.schema.judge import MISSING, explain

Call = TypeVar("Call", bound=Section)


def read_call(command: str, rules: type[Call], argv: Sequence[str]) -> tuple[Call, list[str]]:
    """Split what was typed into the command's own values and overrides of a config.

    Returns:
        The checked values of the command, and the overrides as typed. Of a command that composes an experiment, flags
        of Hydra's are among them.

    Raises:
        UsageError: a flag that this command does not take.
        ConfigError: a value of the command's own that is missing or wrong.
    """
    _check_words(command, rules, argv)
    own, rest = _shared_out(rules, argv)
    return _checked(rules, _with_typed(_defaults(command), own)), rest


def read_own(command: str, rules: type[Call], argv: Sequence[str]) -> Call:
    """The values of a command that takes its own keys and nothing else.

    Raises:
        UsageError: a flag that this command does not take.
        ConfigError: a key that the command does not have, a value that is missing or wrong.
    """
    _check_words(command, rules, argv)
    own, others = _shared_out(rules, argv)
    problems = [_unknown_key(command, rules, argument) for argument in others]
    try:
        call = _checked(rules, _with_typed(_defaults(command), own))
    except ConfigError as error:
        raise ConfigError([*problems, *error.problems]) from None
    if problems:
        raise ConfigError(problems)
    return call


def _check_words(command: str, rules: type[Section], argv: Sequence[str]) -> None:
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


def _shared_out(rules: type[Section], argv: Sequence[str]) -> tuple[list[str], list[str]]:
    """The arguments that set keys of the command's own, and the others."""
    own_keys = set(rules.model_fields)
    own = [argument for argument in argv if argument.lstrip("+~").partition("=")[0].partition(".")[0] in own_keys]
    return own, [argument for argument in argv if argument not in own]


def _unknown_key(command: str, rules: type[Section], argument: str) -> Problem:
    key, _, value = argument.lstrip("+~").partition("=")
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
        override = parsed_override(as_typed(item.lstrip("+")))
        value = _single_value(override)
        try:
            OmegaConf.update(node, override.key_or_group, value, force_add=True)
        except Exception as error:
            raise ConfigError([translate(error, typed) or stumbled(error)]) from error
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
        message="several values are a sweep, which this command does not take",
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
        problems = explain(error, values, rules)
        raise ConfigError([dataclasses.replace(problem, origin=COMMAND_LINE) for problem in problems]) from None
