"""From composed values to a checked config, or to all mistakes at once."""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, get_args

from pydantic import BaseModel, ValidationError

from runner.errors import ConfigError, Problem
from runner.schema import VARIANT_KEYS, Config
from runner.schema.rules import find_conflicts

MISSING = "???"

# Pydantic's kinds of error, in our words.
_SENTENCES = {
    "greater_than": "must be greater than {gt}",
    "greater_than_equal": "must be at least {ge}",
    "less_than": "must be less than {lt}",
    "less_than_equal": "must be at most {le}",
    "int_type": "must be a whole number",
    "int_from_float": "must be a whole number",
    "int_parsing": "must be a whole number",
    "float_type": "must be a number",
    "float_parsing": "must be a number",
    "finite_number": "must be a finite number",
    "bool_type": "must be true or false",
    "string_type": "must be text",
    "literal_error": "must be {expected}",
    "value_error": "{error}",
    "tuple_type": "must be a list",
    "model_type": "must be a group of keys",
    "model_attributes_type": "must be a group of keys",
    "dict_type": "must be a group of keys",
    "union_tag_invalid": "must be one of {expected_tags}",
    "union_tag_not_found": "this key is missing",
}


def judge(values: Mapping[str, Any], found_before: tuple[Problem, ...] = ()) -> Config:
    """Check composed values against the schema.

    Args:
        values: nested plain values, as composed from YAML and the command line.
        found_before: mistakes that were found while composing; reported together with those found here.

    Raises:
        ConfigError: with every mistake: unknown keys, wrong types, values out of range, fields that disagree.
    """
    problems = [*found_before, *_without_values(values)]
    config: Config | None = None
    try:
        # Judged as JSON: there strictness means that a list may become a tuple, but no word becomes a number.
        config = Config.model_validate_json(json.dumps(values))
    except ValidationError as error:
        problems += [_explain(detail, values) for detail in error.errors(include_url=False)]
    problems += find_conflicts(values)
    if problems or config is None:
        raise ConfigError(list(_one_per_key(problems)))
    return config


def known_keys(values: Mapping[str, Any]) -> Iterator[str]:
    """Every key that the schema allows beside the chosen options of the groups."""
    for name, field in Config.model_fields.items():
        yield name
        section = _section_of(field.annotation, VARIANT_KEYS.get(name), values.get(name))
        if section is not None:
            yield from (f"{name}.{key}" for key in section.model_fields)


def variants_of(annotation: Any) -> list[type[BaseModel]]:  # noqa: ANN401 - a type
    """The section classes behind a field: the class itself, or the members of a union."""
    if isinstance(annotation, type):
        return [annotation] if issubclass(annotation, BaseModel) else []
    return [item for item in get_args(annotation) if isinstance(item, type) and issubclass(item, BaseModel)]


def _section_of(annotation: Any, tag: str | None, chosen: Any) -> type[BaseModel] | None:  # noqa: ANN401
    variants = variants_of(annotation)
    if tag is None or not isinstance(chosen, Mapping):
        return variants[0] if variants else None
    fitting = (item for item in variants if chosen.get(tag) in get_args(item.model_fields[tag].annotation))
    return next(fitting, None)


def _without_values(node: object, key: str = "") -> Iterator[Problem]:
    if node == MISSING:
        yield Problem(key=key, message=f"needs a value: {key}=…")
    elif isinstance(node, Mapping):
        for name, child in node.items():
            yield from _without_values(child, f"{key}.{name}" if key else str(name))


def _one_per_key(problems: Iterable[Problem]) -> Iterator[Problem]:
    """Where a value may be of several kinds, pydantic complains once for each: say it in one sentence."""
    by_key: dict[str, list[Problem]] = {}
    for problem in problems:
        by_key.setdefault(problem.key or str(problem), []).append(problem)
    for same in by_key.values():
        first, messages = same[0], list(dict.fromkeys(problem.message for problem in same))
        if all(message.startswith("must be ") for message in messages):
            rest = [message.removeprefix("must be ") for message in messages[1:]]
            yield Problem(**{**vars(first), "message": " or ".join([messages[0], *rest])})
        else:
            yield first


def _explain(detail: Any, values: Mapping[str, Any]) -> Problem:  # noqa: ANN401 - pydantic's ErrorDetails
    key = ".".join(_key_parts(detail["loc"], values))
    kind, context, received = detail["type"], detail.get("ctx", {}), detail["input"]
    if kind == "extra_forbidden":
        return Problem(key=key, value=received, has_value=True, message="no such key", hint=_nearest(key, values))
    if kind == "missing":
        return Problem(key=key, message="this key is missing", hint=_choose_option(key))
    if kind in ("union_tag_invalid", "union_tag_not_found") and isinstance(received, Mapping):
        tag = str(context.get("discriminator", "")).strip("'")
        key, received = f"{key}.{tag}", received.get(tag)
    message = _SENTENCES[kind].format(**context) if kind in _SENTENCES else detail["msg"]
    hint = _choose_option(key) if kind.startswith("union_tag") else None
    return Problem(key=key, value=received, has_value=True, message=message, hint=hint)


def _choose_option(key: str) -> str | None:
    group, _, rest = key.partition(".")
    return f"choose an option with {group}=…" if group in VARIANT_KEYS and "." not in rest else None


def _key_parts(location: tuple[int | str, ...], values: Mapping[str, Any]) -> list[str]:
    """Pydantic's location without the names of union members in it, which are no keys of the user's."""
    parts: list[str] = []
    node: Any = values
    for part in location:
        if isinstance(node, Mapping):
            is_member = part not in node and part in (node.get("family"), node.get("source"), node.get("name"))
        else:
            is_member = isinstance(part, str)
        if is_member:
            continue
        parts.append(str(part))
        if isinstance(node, Mapping):
            node = node.get(part)
        elif isinstance(node, list) and isinstance(part, int):
            node = node[part]
    return parts


def _nearest(key: str, values: Mapping[str, Any]) -> str | None:
    """The known key that was probably meant: spelt alike in its group, or of that name in another group."""
    parent, _, last = key.rpartition(".")
    known = list(known_keys(values))
    siblings = {name.rpartition(".")[2]: name for name in known if name.rpartition(".")[0] == parent}
    elsewhere = {name.rpartition(".")[2]: name for name in known}
    for names in (siblings, elsewhere):
        close = difflib.get_close_matches(last, names, n=1, cutoff=0.7)
        if close:
            return f"did you mean {names[close[0]]}?"
    return _owner_of(parent, last)


def _owner_of(group: str, name: str) -> str | None:
    """Says to which other option of the group a key belongs."""
    tag = VARIANT_KEYS.get(group)
    if tag is None:
        return None
    for variant in variants_of(Config.model_fields[group].annotation):
        if name in variant.model_fields:
            options = ", ".join(map(str, get_args(variant.model_fields[tag].annotation)))
            return f"it belongs to {group}.{tag} = {options}"
    return None
