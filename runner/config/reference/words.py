"""Nodes of a JSON schema in words: descriptions and allowed values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Node = Mapping[str, Any]

_NOUNS = {"integer": "whole number", "number": "number", "string": "text", "null": "null", "object": "keys and values"}
_BOUNDS = {"minimum": "≥", "exclusiveMinimum": ">", "maximum": "≤", "exclusiveMaximum": "<"}


def resolve(node: Node, definitions: Node) -> Node:
    """The definition behind a reference; any other node itself."""
    reference = node.get("$ref")
    return node if reference is None else definitions[reference.rpartition("/")[2]]


def sentence(text: str) -> str:
    """A docstring on one line."""
    return " ".join(text.split())


def describe(node: Node, definitions: Node) -> str:
    """The description of a key on one line; where it has none of its own, that of its definition.

    Raises:
        KeyError: neither has one.
    """
    own = node.get("description")
    return sentence(own if own is not None else resolve(node, definitions)["description"])


def listed(words: list[str], last: str = "or") -> str:
    """`a, b or c`."""
    return f"{', '.join(words[:-1])} {last} {words[-1]}" if len(words) > 1 else "".join(words)


def number(value: float) -> str:
    """A bound: 2^63, 1 or 0.5."""
    whole = int(value) if float(value).is_integer() else None
    if whole is not None and whole >= 2**31 and whole & (whole - 1) == 0:
        return f"2^{whole.bit_length() - 1}"
    return f"{value:g}" if whole is None else str(whole)


def allowed(node: Node, definitions: Node) -> str:
    """What a value may be, such as `whole number ≥ 1 or null`."""
    node = resolve(node, definitions)
    if "anyOf" in node:
        choices = [allowed(choice, definitions) for choice in node["anyOf"]]
        return ", or ".join(choices) if any(" and " in choice for choice in choices) else listed(choices)
    if "const" in node:
        return str(node["const"])
    if "enum" in node:
        return listed([str(word) for word in node["enum"]])
    match node["type"]:
        case "boolean":
            return "true or false"
        case "array":
            return _list(node, definitions)
        case kind:
            bounds = [f"{sign} {number(node[bound])}" for bound, sign in _BOUNDS.items() if bound in node]
            return " ".join([_NOUNS[kind], " and ".join(bounds)]).strip()


def _list(node: Node, definitions: Node) -> str:
    if "prefixItems" in node:
        entries = list(dict.fromkeys(allowed(entry, definitions) for entry in node["prefixItems"]))
        return f"list of {len(node['prefixItems'])}, each: {', '.join(entries)}"
    names = node["items"].get("discriminator", {}).get("mapping")
    return f"list of {listed(list(names), 'and')}" if names else f"list, each: {allowed(node['items'], definitions)}"
