"""Reads all keys for the reference: types and descriptions from the schema, defaults from conf/."""

from __future__ import annotations

import ast
import functools
import inspect
import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import yaml
from omegaconf import OmegaConf
from omegaconf._utils import get_yaml_loader
from pydantic import BaseModel, TypeAdapter
from pydantic.json_schema import GenerateJsonSchema

from runner.config import CONF_DIR, group_options
from runner.config.reference.words import Node, allowed, describe, listed, resolve, sentence
from runner.config.schema import VARIANT_KEYS, Config
from runner.config.schema.calls import CALLS, LAID_OVER, TAKES_EXPERIMENT, TAKES_NOTHING_ELSE
from runner.config.schema.checks.parts import installed_parts
from runner.config.schema.checks.validation import MISSING
from runner.config.schema.transforms import Transform


class _ConfLoader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """OmegaConf's loader, which reads 1e-3 as a number, in C where PyYAML has that: ten times as fast."""

    yaml_implicit_resolvers = get_yaml_loader().yaml_implicit_resolvers


@dataclass(frozen=True, kw_only=True)
class Key:
    """One key of the config."""

    name: str
    """In full, such as data.normalize.mean; for a transform the name alone."""
    allowed: str
    description: str
    defaults: tuple[Any, ...]
    """The value in conf/ for each option of the variant; MISSING where the user must give it. Empty for a group of
    keys."""


@dataclass(frozen=True, kw_only=True)
class Variant:
    """The options of a group that have the same keys."""

    tag: str | None
    """The value that names the variant, such as resnet in model.family = resnet; None where a group has one variant."""
    description: str
    options: tuple[str, ...]
    keys: tuple[Key, ...]


@dataclass(frozen=True, kw_only=True)
class Group:
    """One config group, or the keys that belong to none (name "")."""

    name: str
    description: str
    default_option: str
    variants: tuple[Variant, ...]


def read_groups() -> tuple[Group, ...]:
    """All groups in the order of the schema, the keys outside of groups first."""
    schema = Config.model_json_schema(schema_generator=DescribedSchema)
    definitions, primary = schema["$defs"], read_file(CONF_DIR / "train.yaml")
    chosen = {name: str(option) for name, option in _pairs(primary["defaults"]) if name in schema["properties"]}
    outside = {name: node for name, node in schema["properties"].items() if name not in chosen}
    keys = tuple(_keys_of(outside, definitions, [primary], ""))
    variant = Variant(tag=None, description="", options=("train",), keys=keys)
    general = Group(name="", description="", default_option="train", variants=(variant,))
    return (
        general,
        *(_group(name, schema["properties"][name], definitions, option) for name, option in chosen.items()),
    )


def read_command_keys(command: str) -> Group | None:
    """The own keys of a command; None where it has none."""
    if command not in CALLS:
        return None
    schema = CALLS[command].model_json_schema(schema_generator=DescribedSchema)
    values = read_file(CONF_DIR / f"{command.replace(' ', '_')}.yaml")
    keys = tuple(_keys_of(schema["properties"], schema.get("$defs", {}), [values], ""))
    variant = Variant(tag=None, description="", options=(command,), keys=keys)
    return Group(name="", description=sentence(schema["description"]), default_option=command, variants=(variant,))


def about_other_keys(command: str) -> str:
    """What a command with its own keys does with all other keys, in words."""
    if command in TAKES_NOTHING_ELSE:
        return "is refused"
    if command in TAKES_EXPERIMENT:
        return "is for the config of the experiment, as with `train`"
    if command in LAID_OVER:
        return f"must be of {listed(list(LAID_OVER[command]))}, and changes the config that the run has saved"
    return "changes the config that the run has saved"


def read_transforms() -> tuple[Variant, ...]:
    """The transforms that data.train_transforms and data.eval_transforms may have."""
    schema = TypeAdapter(Transform).json_schema(schema_generator=DescribedSchema)
    variants = []
    for reference in schema["oneOf"]:
        section = resolve(reference, schema["$defs"])
        defaults = {name: node.get("default", MISSING) for name, node in section["properties"].items()}
        name = section["properties"]["name"]["const"]
        keys = _keys_of(section["properties"], schema["$defs"], [{**defaults, "name": name}], "")
        text = sentence(section["description"])
        variants.append(Variant(tag=name, description=text, options=(name,), keys=tuple(keys)))
    return tuple(variants)


def read_parts(group: str) -> tuple[Variant, ...]:
    """The parts that installed packages offer under an entry point group, with the keys of their settings."""
    variants = []
    for part in installed_parts(group):
        schema = part.settings.model_json_schema(schema_generator=DescribedSchema)
        nodes = {name: {"description": "", **node} for name, node in schema.get("properties", {}).items()}
        defaults = {name: node.get("default", MISSING) for name, node in nodes.items()}
        keys = tuple(_keys_of(nodes, schema.get("$defs", {}), [defaults], ""))
        text = sentence(inspect.getdoc(part.function) or schema.get("description", ""))
        variants.append(Variant(tag=part.name, description=text, options=(part.name,), keys=keys))
    return tuple(variants)


def read_experiments() -> dict[str, str]:
    """The experiments in conf/, with the first line of the comment in each file."""
    titles = {}
    for name in group_options("experiment"):
        lines = (CONF_DIR / "experiment" / f"{name}.yaml").read_text(encoding="utf-8").splitlines()
        comments = (line.removeprefix("#").strip() for line in lines if line.startswith("#"))
        titles[name] = next((line for line in comments if line and not line.startswith("@")), "")
    return titles


def as_yaml(value: object) -> str:
    """A value as it is written in YAML, on one line."""
    text = yaml.safe_dump(_rounded(value), default_flow_style=True, width=10_000, allow_unicode=True, sort_keys=False)
    return text.removesuffix("...\n").strip()


def _rounded(value: object) -> object:
    if isinstance(value, list | tuple):
        return [_rounded(item) for item in value]
    return float(f"{value:.6g}") if isinstance(value, float) else value


def _pairs(defaults: list[Any]) -> Iterator[tuple[str, Any]]:
    for entry in defaults:
        if isinstance(entry, dict):
            yield from entry.items()


def _group(name: str, node: Node, definitions: Node, default_option: str) -> Group:
    base_file = CONF_DIR / name / "_base.yaml"
    base = read_file(base_file) if base_file.is_file() else {}
    values = {option: {**base, **_option_values(CONF_DIR / name, option)} for option in group_options(name)}
    tag_key = VARIANT_KEYS.get(name)
    variants = []
    for reference in node.get("oneOf", [node]):
        section = resolve(reference, definitions)
        tag = section["properties"][tag_key]["const"] if tag_key else None
        names = section["properties"].get("name", {}).get("enum", [])
        options = tuple(
            option
            # In the order of the schema, so that resnet18 comes before resnet101.
            for option in sorted(values, key=lambda option: names.index(option) if option in names else -1)
            if tag_key is None or values[option][tag_key] == tag
        )
        own = [values[option] for option in options]
        keys = tuple(_keys_of(section["properties"], definitions, own, f"{name}."))
        variants.append(Variant(tag=tag, description=sentence(section["description"]), options=options, keys=keys))
    variants.sort(key=lambda variant: default_option not in variant.options)
    text = describe(node, definitions)
    return Group(name=name, description=text, default_option=default_option, variants=tuple(variants))


def _keys_of(properties: Node, definitions: Node, values: list[Any], prefix: str) -> Iterator[Key]:
    for name, node in properties.items():
        section = resolve(node, definitions)
        own = [value[name] for value in values]
        if "properties" in section:
            inner = listed(list(section["properties"]), "and")
            text = describe(node, definitions)
            yield Key(name=f"{prefix}{name}", allowed=f"group of keys: {inner}", description=text, defaults=())
            yield from _keys_of(section["properties"], definitions, own, f"{prefix}{name}.")
        else:
            yield Key(
                name=f"{prefix}{name}",
                allowed=allowed(node, definitions),
                description=describe(node, definitions),
                defaults=tuple(own),
            )


def _option_values(folder: Path, option: str) -> dict[str, Any]:
    """The values of an option, merged with those of the files in its defaults list."""
    own = read_file(folder / f"{option}.yaml")
    parts = []
    for entry in own.pop("defaults", ["_self_"]):
        parts.append(own if entry == "_self_" else _option_values(folder, entry))
    if len(parts) == 1:
        return parts[0]
    merged = OmegaConf.to_container(OmegaConf.merge(*parts), resolve=False)
    assert isinstance(merged, dict)
    return {str(name): value for name, value in merged.items()}


def read_file(file: Path) -> dict[str, Any]:
    """The values in one file of conf/, with interpolations as they are written."""
    values = yaml.load(file.read_text(encoding="utf-8"), Loader=_ConfLoader)
    assert isinstance(values, dict)
    return {str(name): value for name, value in values.items()}


class DescribedSchema(GenerateJsonSchema):
    """Pydantic's JSON schema with the docstrings of fields as their descriptions.

    With `use_attribute_docstrings`, pydantic would parse the source code at every start.
    """

    def model_schema(self, schema: Any) -> dict[str, Any]:  # noqa: ANN401 - a core schema
        """The schema of one class."""
        node = super().model_schema(schema)
        for name, text in descriptions(schema["cls"]).items():
            if name in node["properties"]:
                node["properties"][name]["description"] = text
        return node


def descriptions(section: type[BaseModel]) -> dict[str, str]:
    """The docstrings under the fields of a class and its base classes."""
    found: dict[str, str] = {}
    for owner in reversed(section.__mro__):
        module = inspect.getmodule(owner)
        if module is not None and issubclass(owner, BaseModel) and owner is not BaseModel:
            found |= _docstrings(module).get(owner.__name__, {})
    return found


@functools.cache
def _docstrings(module: ModuleType) -> Mapping[str, Mapping[str, str]]:
    """The docstrings under annotated names, by class and name."""
    return {
        node.name: {
            field.target.id: inspect.cleandoc(below.value.value)
            for field, below in itertools.pairwise(node.body)
            if isinstance(field, ast.AnnAssign)
            and isinstance(field.target, ast.Name)
            and isinstance(below, ast.Expr)
            and isinstance(below.value, ast.Constant)
            and isinstance(below.value.value, str)
        }
        for node in ast.parse(inspect.getsource(module)).body
        if isinstance(node, ast.ClassDef)
    }
