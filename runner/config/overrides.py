"""Single overrides, KEY=VALUE: how Hydra's grammar is to read them, and mistakes that each has by itself."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Glob, Override, QuotedString, RangeSweep

from runner.base.errors import ConfigError, Problem
from runner.config import CONF_DIR, group_options
from runner.config.hydra_errors import COMMAND_LINE, to_problem, without_plus
from runner.config.hydra_words import why_no_override
from runner.config.schema import VARIANT_KEYS, Config
from runner.config.schema.base import ConfigSection
from runner.config.schema.calls import CALLS
from runner.config.schema.checks.effects import keys_as_typed

_OF_SEVERAL = ("tracker",)  # groups of which several options are taken at once
OPTION_NAME = re.compile(r"[\w-]+(/[\w-]+)*", re.ASCII)
"""Name of an option, such as resnet50 or paper/table_2; without dots, as ../ would leave the group's folder."""
GROUPS = frozenset(name for name, field in Config.model_fields.items() if (CONF_DIR / name).is_dir()) | {"experiment"}
# Their values are paths or other plain text; keys without a dot, `model` too, are those of commands.
_SECTIONS: tuple[type[ConfigSection], ...] = (Config, *CALLS.values())
PATH_KEYS = frozenset(key for section in _SECTIONS for key in keys_as_typed(section))
SEARCH_PATH = "hydra.searchpath"
FOLDER_SCHEME = "own://"
"""Before a folder of the user's in Hydra's search path."""
_MAX_VALUES = 100_000
_PLAIN_PATH = re.compile(r"[A-Za-z./_-][\w./@%:+-]*", re.ASCII)
_KEY = re.compile(r"^(?P<sign>\+\+|\+|~)?(?P<key>[^=]+?)(?P<package>@[^=]*)?(?P<rest>=.*)?$", re.DOTALL)


def permissive(override: str) -> str:
    """Rewrite an override for Hydra so that any key may be added (++) and groups need no plus."""
    match = _KEY.match(override)
    if match is None or override.startswith("-"):
        return override
    if override == "experiment=null":
        return "~experiment"  # train.yaml has null, but Hydra accepts no null on the command line
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


def quote_path(override: str, *, is_swept: bool = False) -> str:
    """Quote the value of an override of a command's own key where it is a path; its commas too unless it is swept."""
    key, equals, value = override.partition("=")
    return f"{key}{_quoted(key, equals + value, has_list=is_swept)}"


def _quoted(key: str, rest: str, *, has_list: bool = True) -> str:
    """Quote a path: Hydra's grammar rejects ~, umlauts and brackets, and reads 2024 as a number."""
    value = rest[1:]
    is_for_hydra = value in ("", "null") or value[0] in "'\"[" or ("," in value and has_list) or "${" in value
    if key not in PATH_KEYS or is_for_hydra or _PLAIN_PATH.fullmatch(value):
        return rest
    return "='" + value.replace("'", "\\'") + "'"


def find_mistake(override: str) -> Problem | None:
    """A mistake in a single override, whatever else is typed; None where there is none."""
    if override.lstrip("+~").startswith("="):
        return Problem(key="", message=f"{override!r}: a key is missing before `=`", origin=COMMAND_LINE)
    try:
        parsed = parsed_override(permissive(override))
    except ConfigError as error:
        return error.problems[0]
    group = without_plus(override).partition("=")[0].partition("@")[0]
    is_option = (group in GROUPS or "/" in group) and not override.startswith("~")
    return (_wrong_option_name(override, parsed) if is_option else None) or _typed_variant_key(override)


def _typed_variant_key(argument: str) -> Problem | None:
    key, equals, value = argument.lstrip("+").partition("=")
    group, _, name = key.partition(".")
    if not equals or VARIANT_KEYS.get(group) != name:
        return None
    return Problem(
        key=key,
        value=value,
        has_value=True,
        message="is set by the option of the group, which has its own keys",
        hint=f"choose it with {group}={value if value in group_options(group) else '…'}",
        origin=COMMAND_LINE,
    )


def parsed_override(override: str) -> Override:
    """Parse one override by Hydra's grammar.

    Raises:
        ConfigError: it can't be parsed, or is a range with too many values.
    """
    try:
        (parsed,) = OverridesParser.create().parse_overrides([override])
    except Exception as error:
        # Only Hydra's parser runs here: any exception is a mistake in what was typed.
        raise ConfigError([to_problem(error, [override]) or _unreadable(override, error)]) from error
    values = parsed.value()
    if isinstance(values, RangeSweep):
        _check_range(parsed, values)
    return parsed


def _unreadable(override: str, error: Exception) -> Problem:
    is_long = "digits" in str(error)  # Python's limit for int()
    why = "a number in it has too many digits" if is_long else why_no_override(without_plus(override))
    key = without_plus(override).partition("=")[0]
    return Problem(key=key, message=f"this value can't be read: {why}", origin=COMMAND_LINE)


def _check_range(override: Override, values: RangeSweep) -> None:
    span, step = Decimal(values.stop or 0) - Decimal(values.start or 0), Decimal(values.step)
    if span.is_finite() and step.is_finite() and step and 0 < span / step <= _MAX_VALUES:
        return
    message = f"a range needs a step that leads from its start to its stop, in at most {_MAX_VALUES:,} values"
    raise ConfigError([Problem(key=without_plus(override.get_key_element()), message=message, origin=COMMAND_LINE)])


def _wrong_option_name(override: str, parsed: Override) -> Problem | None:
    """A mistake in the name of an option, which must be in the folder of its group."""
    key = without_plus(override).partition("=")[0]
    if parsed.is_delete() and parsed.value_type is None:
        return None
    chosen = parsed.value()
    if key in GROUPS - {"experiment", *_OF_SEVERAL} and isinstance(chosen, list):
        message = "must be one option; of several, the last would be taken"
        hint = f"a sweep over them is started with -m {key}=A,B"
        return Problem(
            key=key, value=_shown_list(chosen), has_value=True, message=message, hint=hint, origin=COMMAND_LINE
        )
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


def _shown_list(values: list[Any]) -> list[str]:
    return [str(getattr(value, "text", value)) for value in values]


def _names(override: Override) -> Iterator[Any]:
    if override.is_sweep_override():
        # The options that a pattern stands for are names anyway.
        has_names = override.is_discrete_sweep() and not isinstance(override.value(), Glob)
        values: list[Any] = list(override.sweep_iterator()) if has_names else []
    else:
        values = [override.value()]
    for value in values:
        for name in value if isinstance(value, list) else [value]:
            yield name.text if isinstance(name, QuotedString) else name


def with_names(override: str, folders: Sequence[Path]) -> str:
    """An override with the options that a pattern stands for, where Hydra would not look in the user's folders.

    Raises:
        ConfigError: there are none.
    """
    parsed = parsed_override(override)
    pattern: Any = parsed.value()
    if not isinstance(pattern, Glob):
        return override
    options = group_options(parsed.key_or_group, folders)
    names = pattern.filter(options)
    if not names:
        message = f"no option has such a name; there are {', '.join(options) or 'none'}"
        raise ConfigError([Problem(key=parsed.key_or_group, message=message, origin=COMMAND_LINE)])
    return f"{parsed.get_key_element()}={','.join(names)}"


def folders_in(overrides: Sequence[str]) -> list[str]:
    """The user's config folders, out of overrides as Hydra is given them."""
    found: list[Any] = [parsed_override(item).value() for item in overrides if item.startswith(f"{SEARCH_PATH}=")]
    texts = [str(getattr(place, "text", place)) for places in found for place in places]
    return [text.removeprefix(FOLDER_SCHEME) for text in texts]


def choices_of_groups(overrides: Sequence[str]) -> Iterator[list[str]]:
    """The overrides of a multirun for each combination of group options; swept keys are left out.

    Raises:
        ConfigError: an override can't be parsed, or sweeps one of Hydra's own settings.
    """
    kept: list[list[str]] = []
    for override in overrides:
        parsed = parsed_override(override)
        key = parsed.key_or_group
        if not parsed.is_sweep_override():
            kept.append([override])
        elif re.split("[./]", key, maxsplit=1)[0] == "hydra":
            message = "Hydra's own settings can't be swept"
            raise ConfigError([Problem(key=key, message=message, origin=COMMAND_LINE)])
        elif key in GROUPS or "/" in key:
            pattern = value if isinstance(value := parsed.value(), Glob) else None
            names = (
                pattern.filter(group_options(key, folders_in(overrides)))
                if pattern is not None
                else parsed.sweep_string_iterator()
            )
            kept.append([f"{key}={name}" for name in names])
    yield from map(list, itertools.product(*kept))
