"""Turns exceptions of Hydra, OmegaConf and YAML into problems, and finds the file or override of a mistake."""

from __future__ import annotations

import dataclasses
import difflib
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from hydra.errors import HydraException, MissingConfigException, OverrideParseException
from omegaconf.errors import OmegaConfBaseException

from runner.base.errors import Problem
from runner.base.reasons import reason_of
from runner.base.reasons.syntax import yaml_mistake
from runner.base.untrusted import UntrustedFileError
from runner.config.hydra_words import in_our_words, why_no_override
from runner.config.schema import Config

COMMAND_LINE = "from the command line"
PACKAGE_HEADER = "# @package _global_"

_QUOTES = "quote spaces and special characters, such as 'key=\"a b\"'"
_SWEEP = re.compile(r"(?:Ambiguous value for argument|Sweep parameters) '(?P<override>[^\n]*)'")
_LOST_OVERRIDE = re.compile(r"In '(?P<file>[^']+)': Could not override '(?P<group>[^'@]+)(?P<package>@[^']+)?'")


def without_plus(override: str) -> str:
    """An override without Hydra's prefixes + and ++."""
    return override.lstrip("+")


def to_problem(error: Exception, arguments: Sequence[str]) -> Problem | None:  # noqa: PLR0911 - a table
    """The mistake of the user behind an exception of Hydra's; None where it is no such exception.

    Args:
        error: raised by Hydra while it composed.
        arguments: the overrides that Hydra was given.
    """
    match error:
        case OverrideParseException():
            return _unreadable_override(error)
        case yaml.MarkedYAMLError(problem_mark=yaml.Mark() as mark):
            return Problem(key="", message=f"{mark.name}{yaml_mistake(error)}")
        case UnicodeDecodeError():
            return Problem(
                key="", message=f"a YAML file is no UTF-8 text (at byte {error.start + 1})", hint="save it as UTF-8"
            )
        case ValueError() if str(error).startswith("Config group override"):
            return _invalid_option_name(arguments)
        case ValueError() | RuntimeError() if {"-sc", "--shell-completion"} & set(arguments):
            return _with_own_message(error)
        case UntrustedFileError():
            return Problem(key="", message=str(error))
        case RecursionError():
            return Problem(key="", message="the config refers to itself in a circle, or is nested too deep")
        case HydraException():
            return _swept_without_flag(error) or _lost_override(error) or _with_own_message(error)
        case OmegaConfBaseException() | yaml.YAMLError() | OSError():
            return _with_own_message(error)
        case _:
            return None


def _with_own_message(error: Exception) -> Problem:
    errors: list[Any] = [error, *([error.__cause__] if isinstance(error, HydraException) and error.__cause__ else [])]
    lines = [line.strip() for shown in errors for line in str(shown).splitlines() if line.strip()]
    messages = [line for line in lines if not line.startswith(("full_key:", "object_type=", "reference_type="))]
    # OmegaConf also adds full_key to the messages of other exceptions.
    key = next((line.removeprefix("full_key:").strip() for line in lines if line.startswith("full_key: ")), "")
    key = next((str(shown.full_key) for shown in errors if getattr(shown, "full_key", None)), key)
    known = (
        reason_of(error) if isinstance(error, OSError) else in_our_words("; ".join(messages) or type(error).__name__)
    )
    return Problem(key=key, message=known)


def unforeseen_problem(error: Exception) -> Problem:
    """A problem for an exception that Hydra does not expect, with the key where OmegaConf names it."""
    return _with_own_message(error)


def _unreadable_override(error: OverrideParseException) -> Problem:
    override = without_plus(error.override)
    why = why_no_override(override)
    return Problem(key="", message=f"{override!r} can't be read as key=value: {why}", hint=_QUOTES, origin=COMMAND_LINE)


def _invalid_option_name(arguments: Sequence[str]) -> Problem:
    for argument in arguments:
        key, equals, value = argument.partition("=")
        is_group = equals and not argument.startswith(("-", "+", "~"))
        if is_group and not isinstance(yaml.safe_load(value), str | list):
            message = "must be the name of an option"
            return Problem(key=key, value=yaml.safe_load(value), has_value=True, message=message, origin=COMMAND_LINE)
    return Problem(key="", message="a config group must be given the name of an option", origin=COMMAND_LINE)


def _swept_without_flag(error: Exception) -> Problem | None:
    match = _SWEEP.match(str(error).strip())
    if match is None:
        return None
    key, _, value = without_plus(match["override"]).partition("=")
    return Problem(
        key=key,
        value=value,
        has_value=True,
        message="several values are a sweep, which is started with -m",
        hint=f"a list is written {key}=[…], and a text with a comma in it '{key}=\"…\"'",
        origin=COMMAND_LINE,
    )


def _lost_override(error: Exception) -> Problem | None:
    """For an `override` line of a YAML file with an unknown group."""
    match = _LOST_OVERRIDE.match(str(error))
    if match is None:
        return None
    file, group = f"{match['file']}.yaml", match["group"]
    if (match["package"] or "").startswith("@experiment."):
        return _without_header(file)
    close = difflib.get_close_matches(group.rpartition("/")[2], Config.model_fields, n=1)
    hint = f"did you mean `override /{close[0]}: …`?" if close else None
    return Problem(key=f"override {group}", message="no such config group", hint=hint, origin=f"from {file}")


def _without_header(file: str | Path) -> Problem:
    return Problem(key="", message=f"{file} must begin with the line `{PACKAGE_HEADER}`")


def override_behind(error: MissingConfigException, arguments: Sequence[str]) -> str | None:
    """The override with the unknown option; None where the option is in a YAML file."""
    group, _, option = (error.missing_cfg_file or "").removesuffix(".yaml").rpartition("/")
    for argument in arguments:
        key, equals, value = argument.partition("=")
        if equals and key.partition("@")[0].lstrip("+") == group and option in value:
            return argument
    return None


def unknown_option(
    error: MissingConfigException,
    culprit: str | None,
    arguments: Sequence[str],
    options_of: Callable[[str], Sequence[str]],
) -> Problem:
    """The problem of an unknown option: which exist, and which was probably meant.

    Args:
        error: raised by Hydra.
        culprit: the override with the option; None where it is in a YAML file.
        arguments: the overrides that Hydra was given.
        options_of: the options of a group, also in config folders; for a list of options Hydra does not name them.
    """
    group, _, option = (error.missing_cfg_file or "").removesuffix(".yaml").rpartition("/")
    options = sorted(name for name in error.options or options_of(group) if not name.startswith("_"))
    if not group:
        return Problem(key="", message=in_our_words(str(error).splitlines()[0]))
    if "override " in f"{group}/{option}":  # an entry of a defaults list without a colon
        message = f"an entry of its defaults list, `{group.rpartition('/')[2]}/{option}`, names no option"
        hint = f"write `- override /{option}: NAME`"
        return Problem(key="", message=f"{group.rpartition('/')[0] or 'a config'}: {message}", hint=hint)
    close = difflib.get_close_matches(option, options, n=1)
    # An option that no override has is in an `override` line of the experiment.
    experiment = next((argument for argument in arguments if argument.startswith("experiment=")), None)
    return Problem(
        key=group,
        value=option,
        has_value=True,
        message=f"no such option; there are {', '.join(options) or 'none'}",
        hint=f"did you mean {close[0]}?" if close else None,
        origin=COMMAND_LINE if culprit else f"from {experiment}" if experiment else None,
    )


def with_origin(problem: Problem, overrides: Sequence[str], files: Sequence[Path]) -> Problem:
    """Add to a problem where its key was set: the command line or one of the experiment files."""
    if problem.origin is not None or not problem.key:
        return problem
    if problem.key == "experiment":
        for file in files:
            text = file.read_text(encoding="utf-8")
            if text.startswith("\ufeff"):
                return Problem(key="", message=f"{file} begins with a byte order mark; save it as UTF-8 without one")
            if PACKAGE_HEADER not in text:
                return _without_header(file)
    if any(_sets(override, problem.key) for override in overrides):
        return dataclasses.replace(problem, origin=COMMAND_LINE)
    origin = next((f"from {file}" for file in files if _has_key(file, problem.key)), None)
    return dataclasses.replace(problem, origin=origin)


def _sets(override: str, key: str) -> bool:
    name = override.lstrip("~").partition("=")[0]
    return name == key or name.startswith(f"{key}.") or ("." in name and key.startswith(f"{name}."))


def _has_key(file: Path, key: str) -> bool:
    node: Any = yaml.safe_load(file.read_text(encoding="utf-8"))
    for part in key.split("."):
        if isinstance(node, list) and part.isdigit() and int(part) < len(node):
            node = node[int(part)]
        elif isinstance(node, Mapping) and part in node:
            node = node[part]
        else:
            return False
    return True
