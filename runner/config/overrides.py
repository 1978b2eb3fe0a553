"""An override, KEY=VALUE, as its writer meant it, and what may be wrong with one by itself."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Sequence
from decimal import Decimal
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Glob, Override, QuotedString, RangeSweep

from runner.base.errors import ConfigError, Problem
from runner.config import CONF_DIR, group_options
from runner.config.refusal import COMMAND_LINE, plain, translate
from runner.config.schema import VARIANT_KEYS, Config
from runner.config.schema.base import Section
from runner.config.schema.calls import CALLS
from runner.config.schema.effects import keys_as_typed

OPTION_NAME = re.compile(r"[\w-]+(/[\w-]+)*", re.ASCII)
"""What the name of an option may look like, such as resnet50 or paper/table_2: no dots, so that it can't climb."""
GROUPS = frozenset(name for name, field in Config.model_fields.items() if (CONF_DIR / name).is_dir()) | {"experiment"}
# Their values are paths or other plain text, taken as they are typed; keys without a group, `model` too, are those of
# commands.
_SECTIONS: tuple[type[Section], ...] = (Config, *CALLS.values())
PATH_KEYS = frozenset(key for section in _SECTIONS for key in keys_as_typed(section))
_MAX_VALUES = 100_000
_PLAIN_PATH = re.compile(r"[A-Za-z./_-][\w./@%:+-]*", re.ASCII)
_KEY = re.compile(r"^(?P<sign>\+\+|\+|~)?(?P<key>[^=]+?)(?P<package>@[^=]*)?(?P<rest>=.*)?$", re.DOTALL)


def permissive(override: str) -> str:
    """Read an override as its writer meant it: values may be added, groups need no plus."""
    match = _KEY.match(override)
    if match is None or override.startswith("-"):
        return override
    if override == "experiment=null":
        return "~experiment"  # It stands like this in train.yaml, but Hydra takes no null on the command line.
    sign, key, rest = match["sign"] or "", match["key"], _quoted(match["key"], match["rest"] or "")
    package = match["package"] or ""
    if key in GROUPS and sign in ("+", "++"):
        return f"{key}{package}{rest}"
    is_value = key not in GROUPS and "/" not in key and not package
    if is_value and sign == "" and rest and key.split(".", 1)[0] != "hydra":
        return f"++{key}{rest}"
    if is_value and sign == "+" and ("." in key or key in Config.model_fields):
        return f"++{key}{rest}"
    return override


def as_typed(override: str, *, is_swept: bool = False) -> str:
    """An override of a command's own key: a path is taken as it was typed, commas and all unless it is swept."""
    key, equals, value = override.partition("=")
    return f"{key}{_quoted(key, equals + value, has_list=is_swept)}"


def _quoted(key: str, rest: str, *, has_list: bool = True) -> str:
    """A path as it was typed: Hydra's grammar would stumble over ~, umlauts or brackets, and read 2024 as a number."""
    value = rest[1:]
    is_for_hydra = value in ("", "null") or value[0] in "'\"[" or ("," in value and has_list) or "${" in value
    if key not in PATH_KEYS or is_for_hydra or _PLAIN_PATH.fullmatch(value):
        return rest
    return "='" + value.replace("'", "\\'") + "'"


def refused(override: str) -> Problem | None:
    """What is wrong with an override by itself, whatever else is typed; None where nothing is."""
    try:
        parsed = parsed_override(permissive(override))
    except ConfigError as error:
        return error.problems[0]
    group = plain(override).partition("=")[0].partition("@")[0]
    is_option = (group in GROUPS or "/" in group) and not override.startswith("~")
    return (_climbing_name(override, parsed) if is_option else None) or _swapped_variant(override)


def _swapped_variant(argument: str) -> Problem | None:
    key, equals, value = argument.lstrip("+").partition("=")
    group, _, name = key.partition(".")
    if not equals or VARIANT_KEYS.get(group) != name:
        return None
    return Problem(
        key=key,
        value=value,
        has_value=True,
        message="follows from the option of the group, which brings its own keys",
        hint=f"choose it with {group}={value if value in group_options(group) else '…'}",
        origin=COMMAND_LINE,
    )


def parsed_override(override: str) -> Override:
    """One override, as Hydra's grammar reads it.

    Raises:
        ConfigError: it can't be read, or is a range that no sweep could walk through.
    """
    try:
        (parsed,) = OverridesParser.create().parse_overrides([override])
    except Exception as error:
        # Only Hydra's grammar is at work here: whatever it stumbles over is a mistake of what was typed.
        raise ConfigError([translate(error, [override]) or _unreadable(override, error)]) from error
    values = parsed.value()
    if isinstance(values, RangeSweep):
        _check_range(parsed, values)
    return parsed


def _unreadable(override: str, error: Exception) -> Problem:
    is_long = "digits" in str(error)  # for which Python has a limit
    why = "a number in it has too many digits" if is_long else f"Hydra's grammar fails with {error!r}"
    key = plain(override).partition("=")[0]
    return Problem(key=key, message=f"this value can't be read: {why}", origin=COMMAND_LINE)


def _check_range(override: Override, values: RangeSweep) -> None:
    span, step = Decimal(values.stop or 0) - Decimal(values.start or 0), Decimal(values.step)
    if span.is_finite() and step.is_finite() and step and abs(span) <= _MAX_VALUES * abs(step):
        return
    message = f"a range goes in steps that are not 0, and has at most {_MAX_VALUES:,} values"
    raise ConfigError([Problem(key=plain(override.get_key_element()), message=message, origin=COMMAND_LINE)])


def _climbing_name(override: str, parsed: Override) -> Problem | None:
    """What is wrong with the name of an option: it must lie in the folder of its group."""
    key = plain(override).partition("=")[0]
    if parsed.is_delete() and parsed.value_type is None:
        return None
    for name in _names(parsed):
        if isinstance(name, str) and not OPTION_NAME.fullmatch(name):
            return Problem(
                key=key,
                value=name,
                has_value=True,
                message="must be the name of an option: letters, digits, _ and -, with / between folders of the group",
                hint="a folder of configs elsewhere is added with --config-dir FOLDER",
                origin=COMMAND_LINE,
            )
    return None


def _names(override: Override) -> Iterator[Any]:
    if override.is_sweep_override():
        values: list[Any] = list(override.sweep_iterator()) if override.is_discrete_sweep() else []
    else:
        values = [override.value()]
    for value in values:
        for name in value if isinstance(value, list) else [value]:
            yield name.text if isinstance(name, QuotedString) else name


def choices_of_groups(overrides: Sequence[str]) -> Iterator[list[str]]:
    """The overrides of a multirun with each combination of the options that it chooses; keys that vary are left out.

    Raises:
        ConfigError: an override can't be read, or varies one of Hydra's own settings.
    """
    kept: list[list[str]] = []
    for override in overrides:
        parsed = parsed_override(override)
        key = parsed.key_or_group
        if not parsed.is_sweep_override():
            kept.append([override])
        elif re.split("[./]", key, maxsplit=1)[0] == "hydra":
            message = "a sweep does not vary Hydra's own settings"
            raise ConfigError([Problem(key=key, message=message, origin=COMMAND_LINE)])
        elif key in GROUPS or "/" in key:
            is_pattern = isinstance(parsed.value(), Glob)
            names = group_options(key) if is_pattern else list(parsed.sweep_string_iterator())
            kept.append([f"{key}={name}" for name in names])
    yield from map(list, itertools.product(*kept))
