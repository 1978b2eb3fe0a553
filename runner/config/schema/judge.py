"""From composed values to a checked config, or to all mistakes at once."""

from __future__ import annotations

import dataclasses
import difflib
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, get_args

from pydantic import BaseModel, ValidationError

from runner.base.errors import ConfigError, Problem
from runner.config.schema import VARIANT_KEYS, Config
from runner.config.schema.base import variants_of
from runner.config.schema.rules import find_conflicts

MISSING = "???"
# The keys that may tell which variant of a section is meant, in this order.
_TAGS = ("family", "source", "name")

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
    "too_long": "must be a list of {max_length}",
    "string_too_short": "must not be empty",
    "model_type": "must be a group of keys",
    "model_attributes_type": "must be a group of keys",
    "dict_type": "must be a group of keys",
    "union_tag_invalid": "must be one of {expected_tags}",
    "union_tag_not_found": "this key is missing",
}


def judge(values: Mapping[str, Any], found_before: tuple[Problem, ...] = (), *, is_trained: bool = False) -> Config:
    """Check composed values against the schema.

    Args:
        values: nested plain values, as composed from YAML and the command line.
        found_before: mistakes that were found while composing; reported together with those found here.
        is_trained: whether the model only has to be evaluated; rules of training don't count then.

    Raises:
        ConfigError: with every mistake: unknown keys, wrong types, values out of range, fields that disagree.
    """
    problems = [*found_before, *_without_values(values)]
    config: Config | None = None
    try:
        # Judged as JSON: there strictness means that a list may become a tuple, but no word becomes a number.
        # What JSON can't hold has been reported already.
        config = Config.model_validate_json(json.dumps(values, default=repr))
    except ValidationError as error:
        problems += explain(error, values)
    told = {problem.key for problem in problems}
    problems += (problem for problem in _huge_numbers(values) if problem.key not in told)
    problems += find_conflicts(values, is_trained=is_trained)
    if problems or config is None:
        raise ConfigError(list(_one_per_key(problems)))
    return config


def explain(error: ValidationError, values: Mapping[str, Any], root: type[BaseModel] = Config) -> list[Problem]:
    """What pydantic found, in our words.

    Args:
        error: by which the values were refused.
        values: nested plain values.
        root: the section by whose rules they were judged.
    """
    return [_explain(detail, values, root) for detail in error.errors(include_url=False)]


def known_keys(values: Mapping[str, Any], root: type[BaseModel] = Config) -> Iterator[str]:
    """Every key that a section allows beside the chosen options of the groups; entries of lists have none."""
    yield from _keys_of(root, values, "")


def did_you_mean(key: str, known: Iterable[str]) -> str | None:
    """The known key that was probably meant: spelt alike, as a whole or in its last word."""
    full = list(known)
    by_last = {name.rpartition(".")[2]: name for name in full}
    close = difflib.get_close_matches(key, full, n=1, cutoff=0.7)
    if not close:
        close = [by_last[name] for name in difflib.get_close_matches(key.rpartition(".")[2], by_last, n=1, cutoff=0.7)]
    return f"did you mean {close[0]}?" if close else None


def _keys_of(section: type[BaseModel], values: object, prefix: str) -> Iterator[str]:
    for name, field in section.model_fields.items():
        yield f"{prefix}{name}"
        child = values.get(name) if isinstance(values, Mapping) else None
        inner = _chosen(variants_of(field.annotation), child)
        if inner is not None:
            yield from _keys_of(inner, child, f"{prefix}{name}.")


def _chosen(variants: Sequence[type[BaseModel]], values: object) -> type[BaseModel] | None:
    if len(variants) < 2 or not isinstance(values, Mapping):
        return variants[0] if len(variants) == 1 else None
    tag = next(tag for tag in _TAGS if tag in variants[0].model_fields)
    fitting = (item for item in variants if values.get(tag) in get_args(item.model_fields[tag].annotation))
    return next(fitting, None)


def _section_at(
    parts: Sequence[str], values: Mapping[str, Any], root: type[BaseModel] = Config
) -> type[BaseModel] | None:
    """The section class at a key, such as that of the third entry for data.train_transforms.2."""
    section: type[BaseModel] | None = root
    annotation: Any = root
    node: Any = values
    for part in parts:
        if isinstance(node, list) and part.isdigit():
            annotation, node = get_args(annotation)[0], node[int(part)]
        elif section is not None and part in section.model_fields and isinstance(node, Mapping):
            annotation, node = section.model_fields[part].annotation, node.get(part)
        else:
            return None
        section = _chosen(variants_of(annotation), node)
    return section


def _without_values(node: object, key: str = "") -> Iterator[Problem]:
    if node == MISSING:
        yield Problem(key=key, message=f"needs a value: {key}=…")
    elif isinstance(node, bytes):
        yield Problem(key=key, message="must be text, a number, true, false or null, not binary data")
    elif isinstance(node, Mapping):
        for name, child in node.items():
            yield from _without_values(child, f"{key}.{name}" if key else str(name))


def _huge_numbers(node: object, key: str = "") -> Iterator[Problem]:
    """Whole numbers that no machine can count to, where a field has no upper bound of its own."""
    if isinstance(node, int) and not -(2**63) <= node < 2**63:
        yield Problem(key=key, message="must be a number of at most 18 digits")
    elif isinstance(node, Mapping | list):
        for name, child in node.items() if isinstance(node, Mapping) else enumerate(node):
            yield from _huge_numbers(child, f"{key}.{name}" if key else str(name))


def _one_per_key(problems: Iterable[Problem]) -> Iterator[Problem]:
    """Where a value may be of several kinds, pydantic complains once for each: say it in one sentence."""
    by_key: dict[str, list[Problem]] = {}
    for problem in problems:
        by_key.setdefault(problem.key or str(problem), []).append(problem)
    for same in by_key.values():
        first, messages = same[0], list(dict.fromkeys(problem.message for problem in same))
        if all(message.startswith("must be ") for message in messages):
            rest = [message.removeprefix("must be ") for message in messages[1:]]
            yield dataclasses.replace(first, message=" or ".join([messages[0], *rest]))
        else:
            yield first


def _explain(detail: Any, values: Mapping[str, Any], root: type[BaseModel]) -> Problem:  # noqa: ANN401 - ErrorDetails
    parts = _key_parts(detail["loc"], values)
    key = ".".join(parts)
    kind, context, received = detail["type"], detail.get("ctx", {}), detail["input"]
    if kind == "extra_forbidden":
        return Problem(
            key=key, value=received, has_value=True, message="no such key", hint=_nearest(parts, values, root)
        )
    if kind == "missing" and isinstance(received, list):
        owner = _section_at(parts[:-2], values, root)
        length = len(get_args(owner.model_fields[parts[-2]].annotation)) if owner is not None else "more"
        kind, context, key = "too_long", {"max_length": length}, ".".join(parts[:-1])
    elif kind == "missing":
        return Problem(key=key, message="this key is missing", hint=_choose_option(key))
    if kind in ("union_tag_invalid", "union_tag_not_found") and isinstance(received, Mapping):
        tag = str(context.get("discriminator", "")).strip("'")
        key, received = f"{key}.{tag}", received.get(tag)
    message = _SENTENCES[kind].format(**_readable(context)) if kind in _SENTENCES else detail["msg"]
    hint = (_choose_option(key) if kind.startswith("union_tag") else None) or _close_to(received, context)
    return Problem(key=key, value=received, has_value=kind != "union_tag_not_found", message=message, hint=hint)


def _readable(context: Mapping[str, Any]) -> dict[str, Any]:
    whole = {name: int(value) for name, value in context.items() if isinstance(value, float) and value.is_integer()}
    return {**context, **whole}


def _close_to(received: object, context: Mapping[str, Any]) -> str | None:
    """The allowed word that was probably meant."""
    allowed = re.findall(r"'([^']*)'", str(context.get("expected") or context.get("expected_tags") or ""))
    close = difflib.get_close_matches(received, allowed, n=1) if isinstance(received, str) else []
    return f"did you mean {close[0]}?" if close else None


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
            node = node[part] if part < len(node) else None
    return parts


def _nearest(parts: Sequence[str], values: Mapping[str, Any], root: type[BaseModel]) -> str | None:
    """Where the key belongs, or the known key that was probably meant: spelt alike in its section or elsewhere."""
    *parents, last = parts
    owner = _owner_of(".".join(parents), last)
    if owner is not None:
        return owner
    section = _section_at(parents, values, root)
    siblings = {name: ".".join([*parents, name]) for name in section.model_fields} if section is not None else {}
    elsewhere = {name.rpartition(".")[2]: name for name in known_keys(values, root)}
    for names in (siblings, elsewhere):
        close = difflib.get_close_matches(last, names, n=1, cutoff=0.7)
        if close:
            return f"did you mean {names[close[0]]}?"
    return None


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
