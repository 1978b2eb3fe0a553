"""docs/config.schema.json: a JSON schema (draft 7) of experiment files, for editors.

An experiment is a part of a config, so no key is required; the chosen options of groups are unknown, so the keys of all
options are allowed. Only transforms, as entries of lists that are replaced as a whole, have required keys.
"""

from __future__ import annotations

import json
from typing import Any

from pydantic import TypeAdapter

from runner.config import group_options
from runner.config.reference.keys import DescribedSchema, read_groups
from runner.config.reference.words import Node, describe, resolve, sentence
from runner.config.schema import VARIANT_KEYS, Config
from runner.config.schema.checks.parts import LOSSES, TRANSFORMS, UserPart, installed_parts
from runner.config.schema.trainer import LOSS_NAMES
from runner.config.schema.transforms import Transform

_COPIED = ("type", "const", "enum", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")
_HYDRA = {"description": "Settings of Hydra's own, such as hydra.sweeper.params.", "type": "object"}
_INTERPOLATION = {"$ref": "#/definitions/interpolation"}


def experiment_schema() -> dict[str, Any]:
    """The schema as plain values."""
    schema = Config.model_json_schema(schema_generator=DescribedSchema)
    definitions = schema["$defs"]
    sections = {
        name: _section(node, definitions, VARIANT_KEYS.get(name)) for name, node in schema["properties"].items()
    }
    sections["trainer"] = _with_losses(sections["trainer"])
    return {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": "Experiment of the runner",
        "description": "What differs from the defaults in conf/; the first line is `# @package _global_`.",
        "type": "object",
        "properties": {"defaults": _defaults_list(), **sections, "hydra": _HYDRA},
        "additionalProperties": False,
        "definitions": {
            "interpolation": {
                "description": "The value of another key, such as ${data.image_size}.",
                "type": "string",
                "pattern": r"^\$\{.+\}$",
            },
            "transform": _transform(),
        },
    }


def as_text(schema: dict[str, Any]) -> str:
    """The content of docs/config.schema.json."""
    return json.dumps(schema, indent=2, ensure_ascii=False) + "\n"


def _defaults_list() -> dict[str, Any]:
    """The defaults list: names of other experiments, and `override /GROUP: OPTION`."""
    overrides = {}
    for group in (group.name for group in read_groups() if group.name):
        # Any text is allowed, as users have options of their own.
        overrides[f"override /{group}"] = {"anyOf": [{"enum": group_options(group)}, {"type": "string"}]}
    entry = {
        "type": "object",
        "properties": overrides,
        "patternProperties": {"^override /hydra/": {"type": ["string", "null"]}},
        "additionalProperties": False,
    }
    return {
        "description": "Options of groups that this experiment chooses, and experiments that it builds on.",
        "type": "array",
        "items": {"anyOf": [{"type": "string"}, entry]},
    }


def _section(node: Node, definitions: Node, tag: str | None) -> dict[str, Any]:
    """A group with the keys of all its variants, or a single value."""
    variants = [resolve(choice, definitions) for choice in node.get("oneOf", [node])]
    if "properties" not in variants[0]:
        return {"description": describe(node, definitions), **_value(node, definitions)}
    nodes: dict[str, list[Node]] = {}
    for variant in variants:
        for name, child in variant["properties"].items():
            if name != tag:  # set by the option
                nodes.setdefault(name, []).append(child)
    properties = {name: _merged([_section(child, definitions, None) for child in same]) for name, same in nodes.items()}
    text = describe(node, definitions)
    return {"description": text, "type": "object", "properties": properties, "additionalProperties": False}


def _merged(sections: list[dict[str, Any]]) -> dict[str, Any]:
    """One node for the same key of several variants."""
    different = [section for position, section in enumerate(sections) if section not in sections[:position]]
    return different[0] if len(different) == 1 else {"anyOf": different}


def _value(node: Node, definitions: Node) -> dict[str, Any]:
    """A single value, or an interpolation instead of it."""
    if "items" in node and "discriminator" in node["items"]:
        entries = {"type": "array", "items": {"$ref": "#/definitions/transform"}}
        return {"anyOf": [entries, _INTERPOLATION]}
    choices = [_plain(choice) for choice in node.get("anyOf", [node])]
    is_text = any(choice == {"type": "string"} for choice in choices)
    choices += [] if is_text else [_INTERPOLATION]
    return choices[0] if len(choices) == 1 else {"anyOf": choices}


def _plain(node: Node) -> dict[str, Any]:
    copied = {name: node[name] for name in _COPIED if name in node}
    if "prefixItems" not in node:
        return copied
    entries = [{"anyOf": [_plain(entry), _INTERPOLATION]} for entry in node["prefixItems"]]
    return {**copied, "items": entries, "additionalItems": False, "minItems": len(entries)}


def _transform() -> dict[str, Any]:
    schema = TypeAdapter(Transform).json_schema(schema_generator=DescribedSchema)
    entries = []
    for choice in schema["oneOf"]:
        entry = _entry(resolve(choice, schema["$defs"]))
        is_custom = entry["properties"]["name"]["const"] == "custom"
        entries += [_of_part(entry, part) for part in installed_parts(TRANSFORMS)] if is_custom else []
        entries += [] if is_custom and any(installed_parts(TRANSFORMS)) else [entry]
    return {"oneOf": entries}


def _of_part(entry: dict[str, Any], part: UserPart) -> dict[str, Any]:
    """The entry `custom` for one of the transforms that are installed."""
    own = {"part": {"const": part.name}, "arguments": _settings(part)}
    return {**entry, "properties": {**entry["properties"], **own}}


def _settings(part: UserPart) -> dict[str, Any]:
    schema = part.settings.model_json_schema(schema_generator=DescribedSchema)
    properties = {name: {"description": "", **node} for name, node in schema.get("properties", {}).items()}
    described = {"description": "", "required": [], **schema, "properties": properties}
    return _entry(described)


def _with_losses(trainer: dict[str, Any]) -> dict[str, Any]:
    """The group `trainer` with the names and settings of the losses that are installed."""
    parts = list(installed_parts(LOSSES))
    if not parts:
        return trainer
    properties = dict(trainer["properties"])
    names = {"enum": [*LOSS_NAMES, *(part.name for part in parts)]}
    properties["loss"] = {"description": properties["loss"]["description"], "anyOf": [names, _INTERPOLATION]}
    nothing = {"type": "object", "properties": {}, "additionalProperties": False}
    settings = [nothing, *(_settings(part) for part in parts)]
    properties["loss_arguments"] = {"description": properties["loss_arguments"]["description"], "anyOf": settings}
    return {**trainer, "properties": properties}


def _entry(section: Node) -> dict[str, Any]:
    properties = {
        # The name identifies the entry, so it can't be an interpolation.
        name: {"description": sentence(node["description"]), **(_plain(node) if name == "name" else _value(node, {}))}
        for name, node in section["properties"].items()
    }
    return {
        "description": sentence(section["description"]),
        "type": "object",
        "properties": properties,
        "required": list(section["required"]),
        "additionalProperties": False,
    }
