"""Which interpolations a config may hold, and how large they grow: judged before OmegaConf parses or resolves any.

OmegaConf's own grammar takes names that are computed, nested as deep as one likes, and texts that become
interpolations; what that grows to can't be known without resolving it. So the interpolations are a closed list of
forms, each of which is read here as OmegaConf reads it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from typing import Any

from runner.base.errors import Problem

_MAX_EXPANDED = 1_000_000
"""Characters, and values, that all interpolations of a config may come to."""
_MAX_LINKS = 25
"""Keys that refer to each other in a row; OmegaConf calls itself for each."""
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


def unreadable(values: object) -> list[Problem]:
    """The texts with an interpolation of a form that is not taken; empty where all is well.

    Args:
        values: nested plain values, as they were written.
    """
    return [
        Problem(
            key=".".join(path), value=text, has_value=True, message="is no interpolation that is taken", hint=_ALLOWED
        )
        for path, text in texts(values, ())
        if _is_unreadable(text)
    ]


def unresolvable(values: Mapping[Any, Any]) -> list[Problem]:
    """The keys whose interpolations can't be resolved within bounds; empty where all is well.

    Twenty keys of which each is the one before it twice make a text of a megabyte; forty make a terabyte. So the size
    is counted before anything is resolved. A reference to what is not there is OmegaConf's to tell.

    Args:
        values: nested plain values, as they were written.
    """
    if problems := unreadable(values):
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
    """All texts of nested plain values, and where they stand."""
    if isinstance(node, str):
        yield path, node
    elif isinstance(node, Mapping | list):
        for name, child in node.items() if isinstance(node, Mapping) else enumerate(node):
            yield from texts(child, (*path, str(name)))


def absolute(name: str, path: Path) -> Path | None:
    """The place that a name in an interpolation means: `.x` is beside the value at `path`, `..x` one level up."""
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
    """Characters that values come to once they are resolved, counted without resolving them."""

    def __init__(self, values: Mapping[Any, Any]) -> None:
        self.values = values
        self.known: dict[Path, tuple[int, int]] = {}
        """Sizes, and how many keys refer to each other in a row from there on."""
        self.open: list[Path] = []
        """The values that are being counted, each referred to by the one before it."""
        self.num_links = 0
        """Of the value that is being counted, until now."""
        self.problems: dict[str, Problem] = {}

    def count(self, node: object, path: Path) -> int:
        """The size of a value; `problems` hold what keeps it from being counted."""
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
        self.problems.setdefault(key, Problem(key=key, value=text, has_value=True, message=message))
        return 0


def _child(node: object, part: str) -> object:
    """What OmegaConf finds under a part of a key; None where there is nothing."""
    if isinstance(node, Mapping):
        return node.get(part)
    return node[int(part)] if isinstance(node, list) and int(part) < len(node) else None
