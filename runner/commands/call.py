"""Reads what a command takes: its own keys from conf/<command>.yaml, the rest laid over a saved config."""

from __future__ import annotations

import difflib
import json
from collections.abc import Sequence
from typing import Any, TypeVar

import yaml
from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import OmegaConf
from pydantic import ValidationError

from runner.compose import CONF_DIR, permissive
from runner.errors import ConfigError, Problem, UsageError
from runner.refusal import COMMAND_LINE, translate
from runner.schema.base import Section
from runner.schema.calls import WITHOUT_CONFIG
from runner.schema.judge import MISSING

Call = TypeVar("Call", bound=Section)


def read_call(command: str, rules: type[Call], argv: Sequence[str]) -> tuple[Call, list[str]]:
    """Split what was typed into the command's own values and overrides of the saved config.

    Returns:
        The checked values of the command, and the overrides as typed.

    Raises:
        UsageError: a flag that this command does not take.
        ConfigError: a value of the command's own that is missing or wrong.
    """
    flags = [argument for argument in argv if argument.startswith("-")]
    if flags:
        raise UsageError(f"{command} takes KEY=VALUE only, not {flags[0]}")
    first_key = next(iter(rules.model_fields))
    bare = [argument for argument in argv if "=" not in argument and not argument.startswith("~")]
    if bare:
        raise UsageError(f"{bare[0]!r} is no KEY=VALUE; did you mean {first_key}={bare[0]}?")
    own_keys = set(rules.model_fields)
    own = [argument for argument in argv if argument.lstrip("+~").partition("=")[0].partition(".")[0] in own_keys]
    rest = [argument for argument in argv if argument not in own]
    if command in WITHOUT_CONFIG and rest:
        raise ConfigError([_unknown(argument, rules) for argument in rest])
    values = yaml.safe_load((CONF_DIR / f"{command.replace(' ', '_')}.yaml").read_text(encoding="utf-8"))
    return _checked(rules, _with_typed(values, own)), rest


def _unknown(argument: str, rules: type[Section]) -> Problem:
    key = argument.lstrip("+~").partition("=")[0]
    close = difflib.get_close_matches(key, rules.model_fields, n=1)
    hint = f"did you mean {close[0]}?" if close else f"there are {', '.join(rules.model_fields)}"
    return Problem(key=key, message="no such key", hint=hint, origin=COMMAND_LINE)


def _with_typed(values: dict[str, Any], typed: Sequence[str]) -> dict[str, Any]:
    node = OmegaConf.create(values)
    try:
        overrides = OverridesParser.create().parse_overrides([permissive(item.lstrip("+")) for item in typed])
        for override in overrides:
            if not override.is_sweep_override():
                OmegaConf.update(node, override.key_or_group, override.value(), force_add=True)
    except Exception as error:
        refusal = translate(error, typed)
        if refusal is None:
            raise
        raise ConfigError([refusal]) from error
    several = [override.key_or_group for override in overrides if override.is_sweep_override()]
    if several:
        raise ConfigError([Problem(key=key, message="takes one value", origin=COMMAND_LINE) for key in several])
    plain = OmegaConf.to_container(node)
    assert isinstance(plain, dict)
    return {str(key): value for key, value in plain.items()}


def _checked(rules: type[Call], values: dict[str, Any]) -> Call:
    missing = [key for key, value in values.items() if value == MISSING]
    if missing:
        raise ConfigError([Problem(key=key, message=f"needs a value: {key}=…") for key in missing])
    try:
        return rules.model_validate_json(json.dumps(values))
    except ValidationError as error:
        raise ConfigError([_problem(detail) for detail in error.errors(include_url=False)]) from None


def _problem(detail: Any) -> Problem:  # noqa: ANN401 - pydantic's ErrorDetails
    key = ".".join(map(str, detail["loc"]))
    message = "no such key" if detail["type"] == "extra_forbidden" else detail["msg"].removeprefix("Input ").lower()
    return Problem(key=key, value=detail["input"], has_value=True, message=message, origin=COMMAND_LINE)
