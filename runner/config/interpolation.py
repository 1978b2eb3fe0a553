"""Interpolations such as `${key}` and `${oc.env:NAME}`: which forms are allowed, how large they may become.

A value from the environment may be a secret: it is used, but saved and shown as it was written.
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
from runner.base.safe_text import mask_credentials, without_secrets
from runner.config.hydra_words import in_our_words

_REFERENCE = re.compile(r"\$\{([^{}]*)\}")
_ENVIRONMENT_ONLY = re.compile(r"\$\{oc\.env:[\w,.-]+\}", re.ASCII)
_FROM_ENVIRONMENT = re.compile(r"\$\{oc\.env:")
_MAX_EXPANDED = 1_000_000
"""Characters and values of a config with all interpolations resolved."""
_MAX_LINKS = 25
"""Longest chain of keys that refer to each other; OmegaConf recurses for each."""
_NAME = r"\.*[\w-]+(?:\.[\w-]+|\[\w+\])*"
_PLAIN = r"[^${}\\()\[\]]*"
_VARIABLE = rf"oc\.env:[\w.-]+(?:,{_PLAIN})?"
_INTERPOLATION = re.compile(
    rf"\$\{{(?:(?P<name>{_NAME})|(?P<environment>{_VARIABLE})|oc\.decode:\$\{{(?P<decoded>{_VARIABLE})\}}"
    rf"|hydra:(?P<hydra>{_NAME})|(?P<plain>(?:now|python_version):{_PLAIN})"
    # of conf/train.yaml
    rf"|new_sweep_dir:\$\{{(?P<sweep_dir>{_NAME})\}},\$\{{(?P<output_dir>{_NAME})\}})\}}",
    re.ASCII,
)
_INDEX = re.compile(r"0|[1-9]\d{0,8}", re.ASCII)
_ALLOWED = (
    "there are ${KEY}, ${oc.env:NAME}, ${oc.env:NAME,DEFAULT}, ${oc.decode:${oc.env:NAME}}, ${hydra:KEY} and "
    "${now:FORMAT}, where a KEY has letters, digits, _ and -, and DEFAULT and FORMAT no brackets"
)
Path = tuple[str, ...]


def node_at(values: object, path: tuple[str, ...]) -> Any:  # noqa: ANN401 - whatever YAML can hold
    """The value at a path in nested plain values; None where there is none."""
    for part in path:
        if isinstance(values, Mapping):
            values = next((child for name, child in values.items() if str(name) == part), None)
        elif isinstance(values, list) and part.isdecimal() and int(part) < len(values):
            values = values[int(part)]
        else:
            return None
    return values


def from_environment(values: Mapping[Any, Any]) -> dict[str, str]:
    """The texts with values of environment variables, as they are written, by full key.

    A reference to another key is replaced by what is written there, so that each text is complete by itself.

    Args:
        values: nested plain values as they are written, for which :func:`unresolvable` finds nothing.
    """
    found = {}
    for path, text in texts(values, ()):
        written = _without_references(values, text, path)
        if _FROM_ENVIRONMENT.search(written):
            found[".".join(path)] = written
    return found


def _without_references(values: Mapping[Any, Any], text: str, path: tuple[str, ...]) -> str:
    def written(match: re.Match[str]) -> str:
        target = absolute(match[1], path) if ":" not in match[1] else None
        child = node_at(values, target) if target is not None else None
        return _without_references(values, child, target) if isinstance(child, str) and target else match[0]

    return _REFERENCE.sub(written, text)


def as_written(problem: Problem, values: Mapping[str, Any], written: Mapping[str, str]) -> Problem:
    """Replace the values of environment variables in a mistake by what is written in the config.

    Args:
        problem: the mistake.
        values: nested plain values, resolved.
        written: as from :func:`from_environment`.
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
    """Find addresses with a password: configs are saved, and other users see command lines.

    Args:
        values: nested plain values as they are written.
    """
    found = [
        Problem(
            key=".".join(path),
            message=f"{without_secrets(mask_credentials(text))} holds a password, which would be saved",
            hint="put the address into an environment variable and write '${oc.env:NAME}' for it",
        )
        for path, text in texts(values, ())
        if mask_credentials(text) != text and "${" not in text
    ]
    # Hydra keeps what was typed a second and third time.
    return [problem for problem in found if not problem.key.startswith(("hydra.overrides.", "hydra.job."))] or found


def interpolated(values: Mapping[Any, Any]) -> list[str]:
    """The keys of a saved config with interpolations that the runner does not save.

    It saves values, and only in `dist` and `sweep` references to environment variables. A folder from others must not
    get other environment variables of this machine into its values.
    """
    found = ((".".join(path), text) for path, text in texts(values, ()))
    return [
        key
        for key, text in found
        if "${" in (_ENVIRONMENT_ONLY.sub("", text) if key.startswith(("dist.", "sweep.", "tracker.")) else text)
    ]


def resolved(values: Mapping[Any, Any]) -> tuple[dict[str, Any], dict[str, str]]:
    """The resolved values of a saved config, and what :func:`from_environment` finds in it.

    Raises:
        ConfigError: an interpolation can't be resolved.
    """
    if problems := unresolvable(values):
        raise ConfigError(problems)
    try:
        found = OmegaConf.to_container(OmegaConf.create(dict(values)), resolve=True)
    except OmegaConfBaseException as error:
        message = in_our_words(str(error).splitlines()[0])
        raise ConfigError([Problem(key=str(error.full_key or ""), message=message)]) from error
    assert isinstance(found, dict)
    return {str(key): value for key, value in found.items()}, from_environment(values)


def unreadable_interpolations(values: object) -> list[Problem]:
    """Find texts with a form of interpolation that is not allowed.

    Args:
        values: nested plain values as they are written.
    """
    return [
        Problem(key=".".join(path), value=text, has_value=True, message="is no allowed interpolation", hint=_ALLOWED)
        for path, text in texts(values, ())
        if _is_unreadable(text)
    ]


def unresolvable(values: Mapping[Any, Any]) -> list[Problem]:
    """Find interpolations that are not allowed, circular, or too large once resolved.

    Twenty keys, each of which holds the one before it twice, make a text of a megabyte; forty make a terabyte. So the
    size is computed before anything is resolved. OmegaConf reports references to missing keys.

    Args:
        values: nested plain values as they are written.
    """
    if problems := unreadable_interpolations(values):
        return problems
    sizes = _Sizes(values)
    of_keys = [(str(name), sizes.count(child, (str(name),))) for name, child in values.items()]
    message = "grows too large: its interpolations refer to each other again and again"
    if too_large := [name for name, size in of_keys if size > _MAX_EXPANDED]:
        return [Problem(key=name, message=message) for name in too_large]
    if sizes.problems:
        return list(sizes.problems.values())
    is_too_large = sum(size for _, size in of_keys) > _MAX_EXPANDED
    return [Problem(key="", message=f"the config {message}")] if is_too_large else []


def texts(node: object, path: Path) -> Iterator[tuple[Path, str]]:
    """All texts in nested plain values, with their paths."""
    if isinstance(node, str):
        yield path, node
    elif isinstance(node, Mapping | list):
        for name, child in node.items() if isinstance(node, Mapping) else enumerate(node):
            yield from texts(child, (*path, str(name)))


def absolute(name: str, path: Path) -> Path | None:
    """The path of a name in an interpolation: `.x` is a sibling of the value at `path`, `..x` is one level up."""
    dots = len(name) - len(name.lstrip("."))
    parts = tuple(part for part in re.split(r"[.\[\]]", name.lstrip(".")) if part)
    if dots > len(path):
        return None
    return (*path[:-dots], *parts) if dots else parts


def _is_unreadable(text: str) -> bool:
    at = text.find("${")
    while at >= 0:
        match = _INTERPOLATION.match(text, at)
        if match is None:
            return True
        at = text.find("${", match.end())
    return False


class _Sizes:
    """Computes the characters of resolved values without resolving them."""

    def __init__(self, values: Mapping[Any, Any]) -> None:
        self.values = values
        self.known: dict[Path, tuple[int, int]] = {}
        """Size, and length of the longest chain of references, of the values that were counted."""
        self.open: list[Path] = []
        """The values that are being counted; each refers to the next."""
        self.num_links = 0
        """Longest chain of references so far of the value that is being counted."""
        self.problems: dict[str, Problem] = {}

    def count(self, node: object, path: Path) -> int:
        """The size of a value; references that can't be counted are added to `problems`."""
        if isinstance(node, Mapping):
            return sum(self.count(child, (*path, str(name))) for name, child in node.items())
        if isinstance(node, list):
            return sum(self.count(child, (*path, str(number))) for number, child in enumerate(node))
        text = str(node)
        matches = _INTERPOLATION.finditer(text) if isinstance(node, str) else ()
        return max(len(text), 1) + sum(self._referred(match, path, text) for match in matches)

    def _referred(self, match: re.Match[str], path: Path, text: str) -> int:
        if variable := match["environment"] or match["decoded"]:
            return len(os.environ.get(variable.removeprefix("oc.env:").partition(",")[0], ""))
        if match["plain"]:
            return 256 * len(match[0])  # the most that strftime makes of a format
        if match["hydra"] and node_at(self.values, ("hydra", *match["hydra"].split("."))) in (None, "???"):
            # Hydra would make null of it. Where it keeps what was typed, the same stands a second and third time.
            if path[:2] not in (("hydra", "overrides"), ("hydra", "job")):
                self._refuse(path, text, f"refers to hydra.{match['hydra']}, which has no value; see --cfg hydra")
            return 0
        names = (match["name"], match["sweep_dir"], match["output_dir"], match["hydra"] and f"hydra.{match['hydra']}")
        return sum(self._of(target, path, text) for name in names if name and (target := absolute(name, path)))

    def _of(self, target: Path, path: Path, text: str) -> int:
        node: Any = self.values
        for position, part in enumerate(target):
            if isinstance(node, str) and "${" in node:
                return self._refuse(path, text, f"leads through another interpolation, {'.'.join(target[:position])}")
            if isinstance(node, list) and not _INDEX.fullmatch(part):
                return self._refuse(path, text, "names an entry of a list by something else than its number")
            node = _child(node, part)
        if target in self.open or target == path[: len(target)]:
            return self._refuse(path, text, f"refers to itself, by {'.'.join(target)}")
        if target not in self.known and len(self.open) <= _MAX_LINKS:
            outer, self.num_links = self.num_links, 0
            self.open.append(target)
            self.known[target] = self.count(node, target), self.num_links + 1
            self.open.pop()
            self.num_links = outer
        size, num_links = self.known.get(target, (0, _MAX_LINKS + 1))
        self.num_links = max(self.num_links, num_links)
        if num_links > _MAX_LINKS:
            self._refuse(path, text, f"is one of more than {_MAX_LINKS} keys that refer to each other in a row")
        return size

    def _refuse(self, path: Path, text: str, message: str) -> int:
        key = ".".join(path)
        if path[:2] == ("hydra", "overrides"):  # where Hydra keeps what was typed, as a list of texts
            key, _, text = text.lstrip("+").partition("=")
            message = "refers to a neighbour by a leading dot, which works in files only; write the full key"
        self.problems.setdefault(key, Problem(key=key, value=text, has_value=True, message=message))
        return 0


def _child(node: object, part: str) -> object:
    """The child of that name or index; None where there is none."""
    if isinstance(node, Mapping):
        return node.get(part)
    return node[int(part)] if isinstance(node, list) and int(part) < len(node) else None
