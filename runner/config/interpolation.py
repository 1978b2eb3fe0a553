"""Interpolations, `${key}` and `${oc.env:NAME}`: which values come from the environment.

What comes from the environment may be a secret: it is used, but saved and shown as it was written.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from typing import Any

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from runner.base.errors import ConfigError, Problem
from runner.base.safe_text import masked
from runner.config.references import absolute, texts, unresolvable

_REFERENCE = re.compile(r"\$\{([^{}]*)\}")
_ENVIRONMENT_ONLY = re.compile(r"\$\{oc\.env:[\w,.-]+\}", re.ASCII)
_FROM_ENVIRONMENT = re.compile(r"\$\{oc\.env:")


def node_at(values: object, path: tuple[str, ...]) -> Any:  # noqa: ANN401 - whatever YAML can hold
    """The value at a place of nested plain values; None where there is none."""
    for part in path:
        if isinstance(values, Mapping):
            values = next((child for name, child in values.items() if str(name) == part), None)
        elif isinstance(values, list) and part.isdecimal() and int(part) < len(values):
            values = values[int(part)]
        else:
            return None
    return values


def from_environment(values: Mapping[Any, Any]) -> dict[str, str]:
    """The texts that come from environment variables, as they were written, by their full keys.

    A reference to another key is replaced by what is written there, so that each stands for itself.

    Args:
        values: nested plain values as they were written, which can be resolved within bounds.
    """
    found = {}
    for path, text in texts(values, ()):
        written = _spelt_out(values, text, path)
        if _FROM_ENVIRONMENT.search(written):
            found[".".join(path)] = written
    return found


def _spelt_out(values: Mapping[Any, Any], text: str, path: tuple[str, ...]) -> str:
    def written(match: re.Match[str]) -> str:
        target = absolute(match[1], path) if ":" not in match[1] else None
        child = node_at(values, target) if target is not None else None
        return _spelt_out(values, child, target) if isinstance(child, str) and target else match[0]

    return _REFERENCE.sub(written, text)


def as_written(problem: Problem, values: Mapping[str, Any], written: Mapping[str, str]) -> Problem:
    """A mistake without the value of an environment variable in it.

    Args:
        problem: what is told of any key.
        values: nested plain values, resolved.
        written: the texts that come from the environment, by full key.
    """
    for key, text in written.items():
        secret = str(node_at(values, tuple(key.split("."))))
        if problem.key == key:
            problem = dataclasses.replace(problem, value=text)
        if secret and secret != text:
            problem = dataclasses.replace(problem, message=problem.message.replace(secret, text))
            if isinstance(problem.value, str):
                problem = dataclasses.replace(problem, value=problem.value.replace(secret, text))
    return problem


def passwords(values: Mapping[Any, Any]) -> list[Problem]:
    """The keys with an address that holds a password: a config is saved, and a command line is seen by others.

    Args:
        values: nested plain values as they were written.
    """
    return [
        Problem(
            key=".".join(path),
            message=f"{masked(text)} holds a password, which would be saved",
            hint="put the address into an environment variable and write '${oc.env:NAME}' for it",
        )
        for path, text in texts(values, ())
        if masked(text) != text and "${" not in text
    ]


def interpolated(values: Mapping[Any, Any]) -> list[str]:
    """The keys of a saved config that hold an interpolation which no runner has saved there.

    The runner saves values, and of `dist` and `sweep` what was left to the environment. A folder that comes from
    elsewhere does not have this machine's environment put into whatever else it likes.
    """
    found = ((".".join(path), text) for path, text in texts(values, ()))
    return [
        key
        for key, text in found
        if "${" in (_ENVIRONMENT_ONLY.sub("", text) if key.startswith(("dist.", "sweep.")) else text)
    ]


def resolved(values: Mapping[Any, Any]) -> tuple[dict[str, Any], dict[str, str]]:
    """The values of a saved config, and those that come from the environment as they were written.

    Raises:
        ConfigError: an interpolation leads nowhere, or can't be resolved within bounds.
    """
    if problems := unresolvable(values):
        raise ConfigError(problems)
    try:
        found = OmegaConf.to_container(OmegaConf.create(dict(values)), resolve=True)
    except OmegaConfBaseException as error:
        message = str(error).splitlines()[0]
        raise ConfigError([Problem(key=str(error.full_key or ""), message=message)]) from error
    assert isinstance(found, dict)
    return {str(key): value for key, value in found.items()}, from_environment(values)
