"""Interpolations, `${key}` and `${oc.env:NAME}`: how large they grow, and which values come from the environment.

What comes from the environment may be a secret: it is used, but saved and shown as it was written.
"""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Iterator, Mapping
from typing import Any

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from runner.base.errors import ConfigError, Problem
from runner.base.masked import masked

_MAX_EXPANDED = 1_000_000
"""Characters, and values, that all interpolations of a config may come to."""
_INTERPOLATION = re.compile(r"\$\{([^{}]*)\}")
_NAME = re.compile(r"\.*[\w-]+(?:\.[\w-]+|\[\w+\])*", re.ASCII)
_ENVIRONMENT_ONLY = re.compile(r"\$\{oc\.env:[\w,.-]+\}", re.ASCII)
_FROM_ENVIRONMENT = re.compile(r"\$\{oc\.env:")


def oversized(values: Mapping[Any, Any]) -> list[Problem]:
    """The keys whose interpolations would grow too large to be resolved; empty where all is well.

    Twenty keys of which each is the one before it twice make a text of a megabyte; forty make a terabyte. So the size
    is counted before anything is resolved. What refers to itself is OmegaConf's to tell.

    Args:
        values: nested plain values, as they were written.
    """
    sizes = _Sizes(values)
    return [
        Problem(key=key, message="grows too large: its interpolations refer to each other again and again")
        for key, size in ((str(name), sizes.of((str(name),))) for name in values)
        if size > _MAX_EXPANDED
    ]


class _Sizes:
    """Characters that values come to once they are resolved, counted without resolving them."""

    def __init__(self, values: Mapping[Any, Any]) -> None:
        self.values = values
        self.known: dict[tuple[str, ...], int] = {}

    def of(self, path: tuple[str, ...]) -> int:
        if path not in self.known:
            self.known[path] = 0  # while it is counted: what refers to itself ends here
            self.known[path] = self._count(node_at(self.values, path), path)
        return self.known[path]

    def _count(self, node: object, path: tuple[str, ...]) -> int:
        if isinstance(node, Mapping):
            return sum(self.of((*path, str(name))) for name in node)
        if isinstance(node, list):
            return sum(self.of((*path, str(number))) for number in range(len(node)))
        if not isinstance(node, str):
            return 1
        return len(node) + sum(self._referred(body, path) for body in references(node))

    def _referred(self, body: str, path: tuple[str, ...]) -> int:
        if body.startswith("oc.env:"):
            return len(os.environ.get(body.removeprefix("oc.env:").partition(",")[0], ""))
        return sum(self.of(target) for name in _NAME.findall(body) if (target := absolute(name, path)) is not None)


def references(text: str) -> Iterator[str]:
    """What stands between the braces of each interpolation of a text, inner ones first."""
    for _ in range(text.count("${")):
        inner = _INTERPOLATION.findall(text)
        if not inner:
            return
        yield from inner
        text = _INTERPOLATION.sub("", text)


def absolute(name: str, path: tuple[str, ...]) -> tuple[str, ...] | None:
    """The place that a name in an interpolation means: `.x` is beside the value at `path`, `..x` one level up."""
    dots = len(name) - len(name.lstrip("."))
    parts = tuple(part for part in re.split(r"[.\[\]]", name.lstrip(".")) if part)
    if dots > len(path):
        return None
    return (*path[:-dots], *parts) if dots else parts


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
        values: nested plain values as they were written, not oversized.
    """
    found = {}
    for path, text in _texts(values, ()):
        written = _spelt_out(values, text, path, depth=0)
        if _FROM_ENVIRONMENT.search(written):
            found[".".join(path)] = written
    return found


def _texts(node: object, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], str]]:
    if isinstance(node, str):
        yield path, node
    elif isinstance(node, Mapping | list):
        named = node.items() if isinstance(node, Mapping) else enumerate(node)
        for name, child in named:
            yield from _texts(child, (*path, str(name)))


def _spelt_out(values: Mapping[Any, Any], text: str, path: tuple[str, ...], depth: int) -> str:
    if depth > len(path) + 100:
        return text

    def written(match: re.Match[str]) -> str:
        target = absolute(match[1], path) if _NAME.fullmatch(match[1]) else None
        child = node_at(values, target) if target is not None else None
        return _spelt_out(values, child, target, depth + 1) if isinstance(child, str) and target else match[0]

    return _INTERPOLATION.sub(written, text)


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
        for path, text in _texts(values, ())
        if masked(text) != text and "${" not in text
    ]


def interpolated(values: Mapping[Any, Any]) -> list[str]:
    """The keys of a saved config that hold an interpolation which no runner has saved there.

    The runner saves values, and of `dist` and `sweep` what was left to the environment. A folder that comes from
    elsewhere does not have this machine's environment put into whatever else it likes.
    """
    texts = ((".".join(path), text) for path, text in _texts(values, ()))
    return [
        key
        for key, text in texts
        if "${" in (_ENVIRONMENT_ONLY.sub("", text) if key.startswith(("dist.", "sweep.")) else text)
    ]


def resolved(values: Mapping[Any, Any]) -> tuple[dict[str, Any], dict[str, str]]:
    """The values of a saved config, and those that come from the environment as they were written.

    Raises:
        ConfigError: an interpolation leads nowhere, or they grow too large.
    """
    if too_large := oversized(values):
        raise ConfigError(too_large)
    try:
        found = OmegaConf.to_container(OmegaConf.create(dict(values)), resolve=True)
    except OmegaConfBaseException as error:
        message = str(error).splitlines()[0]
        raise ConfigError([Problem(key=str(error.full_key or ""), message=message)]) from error
    assert isinstance(found, dict)
    return {str(key): value for key, value in found.items()}, from_environment(values)
