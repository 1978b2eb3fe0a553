"""What Hydra, OmegaConf and YAML refuse, in our words, and the place where a mistake stands."""

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
from runner.base.untrusted import UntrustedFileError
from runner.config.schema import Config

COMMAND_LINE = "from the command line"
PACKAGE_HEADER = "# @package _global_"

_SWEEP = re.compile(r"(?:Ambiguous value for argument|Sweep parameters) '(?P<override>[^\n]*)'")
_LOST_OVERRIDE = re.compile(r"In '(?P<file>[^']+)': Could not override '(?P<group>[^'@]+)(?P<package>@[^']+)?'")


def plain(override: str) -> str:
    """An override as a person would type it."""
    return override.lstrip("+")


def translate(error: Exception, arguments: Sequence[str]) -> Problem | None:  # noqa: PLR0911 - a table
    """A refusal of Hydra's as a problem; None where the exception is none of its refusals.

    Args:
        error: what came out of Hydra while it composed.
        arguments: the overrides that Hydra was given.
    """
    match error:
        case OverrideParseException():
            return _unreadable_override(error)
        case yaml.MarkedYAMLError(problem_mark=yaml.Mark() as mark):
            where = f"{mark.name}, line {mark.line + 1}, column {mark.column + 1}"
            why = "; ".join(part for part in (error.problem, error.context) if part)
            return Problem(key="", message=f"{where}: this is no YAML: {why}")
        case UnicodeDecodeError():
            return Problem(key="", message=f"a YAML file is no UTF-8 text: {error}", hint="save it as UTF-8")
        case ValueError() if str(error).startswith("Config group override"):
            return _no_name_of_an_option(arguments)
        case ValueError() if {"-sc", "--shell-completion"} & set(arguments):
            return _as_it_is(error)
        case UntrustedFileError():
            return Problem(key="", message=str(error))
        case RecursionError():
            return Problem(key="", message="the config refers to itself again and again, or is nested too deep")
        case HydraException():
            return _swept_without_flag(error) or _lost_override(error) or _as_it_is(error)
        case OmegaConfBaseException() | yaml.YAMLError() | OSError():
            return _as_it_is(error)
        case _:
            return None


def _as_it_is(error: Exception) -> Problem:
    errors: list[Any] = [error, *([error.__cause__] if isinstance(error, HydraException) and error.__cause__ else [])]
    lines = [line.strip() for shown in errors for line in str(shown).splitlines() if line.strip()]
    told = [line for line in lines if not line.startswith(("full_key:", "object_type=", "reference_type="))]
    # OmegaConf writes it into the message of an error that is not its own.
    key = next((line.removeprefix("full_key:").strip() for line in lines if line.startswith("full_key: ")), "")
    key = next((str(shown.full_key) for shown in errors if getattr(shown, "full_key", None)), key)
    return Problem(key=key, message="; ".join(told) or type(error).__name__)


def stumbled(error: Exception) -> Problem:
    """What Hydra did not foresee, as far as it tells the key that it stumbles over."""
    told = _as_it_is(error)
    message = f"this can't be composed: {type(error).__name__}: {told.message}"
    return dataclasses.replace(told, message=message)


def _unreadable_override(error: OverrideParseException) -> Problem:
    detail = str(error).splitlines()[0].replace(error.override, plain(error.override))
    why = "" if detail.startswith("Error parsing override") else f": {detail}"
    return Problem(
        key="",
        message=f"{plain(error.override)!r} can't be read as key=value{why}",
        hint="quote what the shell or Hydra would take apart, such as 'key=\"a b\"'",
        origin=COMMAND_LINE,
    )


def _no_name_of_an_option(arguments: Sequence[str]) -> Problem:
    for argument in arguments:
        key, equals, value = argument.partition("=")
        is_group = equals and not argument.startswith(("-", "+", "~"))
        if is_group and not isinstance(yaml.safe_load(value), str | list):
            told = "must be the name of an option"
            return Problem(key=key, value=yaml.safe_load(value), has_value=True, message=told, origin=COMMAND_LINE)
    return Problem(key="", message="a config group must be given the name of an option", origin=COMMAND_LINE)


def _swept_without_flag(error: Exception) -> Problem | None:
    match = _SWEEP.match(str(error).strip())
    if match is None:
        return None
    key, _, value = plain(match["override"]).partition("=")
    return Problem(
        key=key,
        value=value,
        has_value=True,
        message="several values are a sweep, which is started with -m",
        hint=f"a list is written {key}=[…], and a text with a comma in it '{key}=\"…\"'",
        origin=COMMAND_LINE,
    )


def _lost_override(error: Exception) -> Problem | None:
    """An `override` line of a YAML file that overrides nothing."""
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
    """The override that asked for an option that is not there; None where a YAML file did."""
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
    """Says which option is not there, which there are, and which was probably meant.

    Args:
        error: what Hydra raised.
        culprit: the override that asked for it; None where a YAML file did.
        arguments: what Hydra was given.
        options_of: the options of a group, also in folders of the user's; of a list Hydra does not tell them.
    """
    group, _, option = (error.missing_cfg_file or "").removesuffix(".yaml").rpartition("/")
    options = sorted(name for name in error.options or options_of(group) if not name.startswith("_"))
    if not group:
        return Problem(key="", message=str(error).splitlines()[0])
    close = difflib.get_close_matches(option, options, n=1)
    # Where no override asks for it, an `override` line of the experiment does.
    experiment = next((argument for argument in arguments if argument.startswith("experiment=")), None)
    return Problem(
        key=group,
        value=option,
        has_value=True,
        message=f"no such option; there are {', '.join(options) or 'none'}",
        hint=f"did you mean {close[0]}?" if close else None,
        origin=COMMAND_LINE if culprit else f"from {experiment}" if experiment else None,
    )


def experiment_files(hydra: Any, overrides: Sequence[str]) -> list[Path]:  # noqa: ANN401 - Hydra's structured config
    """The chosen experiment files, as they stand on disk."""
    typed = [override.partition("=")[2] for override in overrides if override.startswith("experiment=[")]
    names = [str(name) for value in typed for name in yaml.safe_load(value)]
    if not names:  # Hydra lists single choices only.
        names = [hydra.runtime.choices.get("experiment") or "null"]
    folders = [Path(source.path) / "experiment" for source in hydra.runtime.config_sources if source.path]
    found = ([path for folder in folders if (path := folder / f"{name}.yaml").is_file()] for name in names)
    return [paths[0] for paths in found if paths]


def with_origin(problem: Problem, overrides: Sequence[str], files: Sequence[Path]) -> Problem:
    """The problem, with the place where its key was set: the command line or one of the experiment files."""
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
    origin = next((f"from {file}" for file in files if _stands_in(file, problem.key)), None)
    return dataclasses.replace(problem, origin=origin)


def _sets(override: str, key: str) -> bool:
    name = override.lstrip("~").partition("=")[0]
    return name == key or name.startswith(f"{key}.") or ("." in name and key.startswith(f"{name}."))


def _stands_in(file: Path, key: str) -> bool:
    node: Any = yaml.safe_load(file.read_text(encoding="utf-8"))
    for part in key.split("."):
        if isinstance(node, list) and part.isdigit() and int(part) < len(node):
            node = node[int(part)]
        elif isinstance(node, Mapping) and part in node:
            node = node[part]
        else:
            return False
    return True
