"""Users' own transforms and losses, which installed packages offer as entry points: found, and their settings checked.

A part is a function of one parameter, whose type is a pydantic model: the part's settings. What the function returns is
the subject of the module that calls it.
"""

from __future__ import annotations

import difflib
import inspect
import json
import typing
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from pydantic import BaseModel, ValidationError

from runner.base.errors import ConfigError, Problem
from runner.base.reasons import first_line

TRANSFORMS = "runner.transforms"
LOSSES = "runner.losses"


class UnusablePartError(Exception):
    """No part has this name, or it can't be used; says why, to follow a key with its value."""


@dataclass(frozen=True, kw_only=True)
class UserPart:
    """A part that an installed package offers."""

    name: str
    function: Callable[[Any], Any]
    settings: type[BaseModel]
    """The type of the function's one parameter."""
    shown: str
    """The entry point, for messages."""


def find_entry_point(group: str, name: str) -> EntryPoint:
    """The entry point of this name; its package is not imported.

    Raises:
        UnusablePartError: there is none, or more than one.
    """
    installed = entry_points(group=group)
    # importlib finds a package twice that is both an editable install and on the path.
    found = {point.value: point for point in installed if point.name == name}
    if len(found) > 1:
        raise UnusablePartError(
            f"is offered more than once under the entry point group {group}: {', '.join(sorted(found))}; uninstall or "
            "rename one"
        )
    if not found:
        names = sorted(installed.names)
        close = difflib.get_close_matches(name, names, n=1)
        listed = f"there are {', '.join(names)}" if names else "none is installed"
        raise UnusablePartError(
            f"no installed package offers it under the entry point group {group}; {listed}"
            + (f"; did you mean {close[0]}?" if close else "")
        )
    return next(iter(found.values()))


def find_part(group: str, name: str) -> UserPart:
    """Import a part.

    Raises:
        UnusablePartError: it is not installed, can't be imported, or is no function of one parameter, the type of which
            is a pydantic model.
    """
    point = find_entry_point(group, name)
    shown = f"{group}: {point.value}"
    try:
        function = point.load()
        (parameter,) = inspect.signature(function).parameters
        settings = typing.get_type_hints(function).get(parameter)
    except Exception as error:  # a user's module may raise anything, and the object may be no function
        raise UnusablePartError(
            f"({shown}) can't be used: {type(error).__name__}: {first_line(error)}; it must be a function of one "
            "parameter, the type of which is a pydantic model"
        ) from error
    if not (isinstance(settings, type) and issubclass(settings, BaseModel)):
        raise UnusablePartError(
            f"({shown}) must be a function of one parameter, the type of which is a pydantic model; its parameter "
            f"{parameter} has {'no type' if settings is None else f'the type {settings}'}"
        )
    return UserPart(name=name, function=function, settings=settings, shown=shown)


def installed_parts(group: str) -> Iterator[UserPart]:
    """All parts of a group that can be used, in the order of their names."""
    for name in sorted(entry_points(group=group).names):
        try:
            yield find_part(group, name)
        except UnusablePartError:  # told where a config asks for it
            continue


def part_problems(
    group: str, name: str, arguments: Mapping[str, Any], *, name_key: str, arguments_key: str
) -> Iterator[Problem]:
    """What is wrong with a part and its settings.

    Args:
        group: :data:`TRANSFORMS` or :data:`LOSSES`.
        name: of the entry point.
        arguments: the settings as composed; plain values.
        name_key: the full key of the name.
        arguments_key: the full key of the settings.
    """
    from runner.config.schema.checks.validation import did_you_mean, sentence_of  # noqa: PLC0415 - imports this module

    try:
        part = find_part(group, name)
    except UnusablePartError as error:
        yield Problem(key=name_key, value=name, has_value=True, message=str(error))
        return
    known = {field.alias or key for key, field in part.settings.model_fields.items()}
    # Said here too, as pydantic drops keys that a model without extra="forbid" does not know.
    for key in sorted(set(arguments) - known):
        hint = did_you_mean(key, known) or f"there are {', '.join(sorted(known)) or 'none'}"
        yield Problem(key=f"{arguments_key}.{key}", message=f"no such setting of {name}", hint=hint)
    try:
        part.settings.model_validate_json(json.dumps({key: arguments[key] for key in arguments if key in known}))
    except ValidationError as error:
        for detail in error.errors(include_url=False):
            place = ".".join(map(str, (arguments_key, *detail["loc"])))
            is_missing = detail["type"] == "missing"
            message = "this key is missing" if is_missing else sentence_of(detail)
            yield Problem(key=place, value=detail["input"], has_value=not is_missing, message=message)


def call_part(group: str, name: str, arguments: Mapping[str, Any], key: str) -> Any:  # noqa: ANN401 - the part's own
    """What a part returns for its settings.

    Args:
        group: :data:`TRANSFORMS` or :data:`LOSSES`.
        name: of the entry point.
        arguments: as composed, and checked by :func:`part_problems`.
        key: where the part is named, for messages.

    Raises:
        ConfigError: the part can't be used, its settings don't fit, or it raises an error (the cause of this one).
    """
    problems = list(part_problems(group, name, arguments, name_key=key, arguments_key=key))
    if problems:
        raise ConfigError(problems)
    part = find_part(group, name)
    try:
        return part.function(part.settings.model_validate_json(json.dumps(dict(arguments))))
    except Exception as error:  # a user's function may raise anything
        message = f"({part.shown}) failed: {type(error).__name__}: {first_line(error)}"
        raise ConfigError([Problem(key=key, value=name, has_value=True, message=message)]) from error
