"""Validates composed values: a Config, or all mistakes at once with readable messages."""

from __future__ import annotations

import dataclasses
import difflib
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, get_args, get_origin

from pydantic import BaseModel, ValidationError

from runner.base.errors import ConfigError, Problem
from runner.config.schema import VARIANT_KEYS, Config
from runner.config.schema.base import variants_of
from runner.config.schema.checks.rules import find_conflicts

MISSING = "???"
# The keys that may name the variant of a section, in this order.
_TAGS = ("family", "source", "name", "kind")

# Messages for pydantic's types of error.
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
    "list_type": "must be a list",
    "too_short": "must have at least {min_length} entries",
    "string_too_long": "must have at most {max_length} characters",
    "string_pattern_mismatch": "must look like {pattern}",
    "none_required": "must be null",
    "missing": "is missing",
    "extra_forbidden": "is no key of it",
    "too_long": "must be a list of {max_length}",
    "string_too_short": "must not be empty",
    "model_type": "must be a group of keys",
    "model_attributes_type": "must be a group of keys",
    "dict_type": "must be a group of keys",
    "union_tag_invalid": "must be one of {expected_tags}",
    "union_tag_not_found": "this key is missing; it must be one of {tags}",
}


def validate_config(
    values: Mapping[str, Any], found_before: tuple[Problem, ...] = (), *, is_trained: bool = False
) -> Config:
    """Check composed values against the schema.

    Args:
        values: nested plain values, as composed from YAML and the command line.
        found_before: mistakes that were found while composing, reported with those found here.
        is_trained: the model is only evaluated, so that rules of training don't apply.

    Raises:
        ConfigError: with every mistake: unknown keys, wrong types, values out of range, fields that disagree.
    """
    problems = [*found_before, *_without_values(values)]
    config: Config | None = None
    try:
        # As JSON: pydantic's strict mode then accepts lists for tuples, but no text for a number.
        # Values that JSON does not have are reported by _without_values.
        config = Config.model_validate_json(json.dumps(values, default=repr))
    except ValidationError as error:
        problems += to_problems(error, values)
    reported = {problem.key for problem in problems}
    problems += (problem for problem in _huge_numbers(values) if problem.key not in reported)
    problems += find_conflicts(values, is_trained=is_trained)
    if problems or config is None:
        raise ConfigError(list(_one_per_key(problems)))
    return config


def to_problems(error: ValidationError, values: Mapping[str, Any], root: type[BaseModel] = Config) -> list[Problem]:
    """The problems behind pydantic's error.

    Args:
        error: of pydantic.
        values: the nested plain values that were validated.
        root: the section that they were validated against.
    """
    details = error.errors(include_url=False)
    return [problem for detail in details for problem in _of_detail(detail, values, root)]


def known_keys(values: Mapping[str, Any], root: type[BaseModel] = Config) -> Iterator[str]:
    """Every key that a section allows with the chosen options of its groups; without entries of lists."""
    yield from _keys_of(root, values, "")


def did_you_mean(key: str, known: Iterable[str]) -> str | None:
    """A hint with the known key that was probably meant: similar as a whole or in its last part."""
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
    """The section class at a key; data.train_transforms.2 is that of the third transform."""
    variants, node = _variants_at(parts, values, root)
    return _chosen(variants, node)


def _variants_at(
    parts: Sequence[str], values: Mapping[str, Any], root: type[BaseModel]
) -> tuple[list[type[BaseModel]], Any]:
    """The section classes that a key may have, and its value; no classes where no section can be."""
    section: type[BaseModel] | None = root
    annotation: Any = root
    node: Any = values
    for part in parts:
        if isinstance(node, list) and part.isdigit():
            annotation, node = get_args(annotation)[0], node[int(part)]
        elif section is not None and part in section.model_fields and isinstance(node, Mapping):
            annotation, node = section.model_fields[part].annotation, node.get(part)
        elif get_origin(annotation) is dict and isinstance(node, Mapping):
            annotation, node = get_args(annotation)[1], node.get(part)
        else:
            return [], None
        section = _chosen(variants_of(annotation), node)
    return variants_of(annotation), node


def _without_values(node: object, key: str = "") -> Iterator[Problem]:
    if node == MISSING:
        yield Problem(key=key, message=f"needs a value: {key}=…")
    elif isinstance(node, bytes):
        yield Problem(key=key, message="must be text, a number, true, false or null, not binary data")
    elif isinstance(node, Mapping):
        for name, child in node.items():
            yield from _without_values(child, f"{key}.{name}" if key else str(name))


def _huge_numbers(node: object, key: str = "") -> Iterator[Problem]:
    """Integers beyond 64 bits, in fields without an upper bound."""
    if isinstance(node, int) and not -(2**63) <= node < 2**63:
        yield Problem(key=key, message="must be a number of at most 18 digits")
    elif isinstance(node, Mapping | list):
        for name, child in node.items() if isinstance(node, Mapping) else enumerate(node):
            yield from _huge_numbers(child, f"{key}.{name}" if key else str(name))


def _one_per_key(problems: Iterable[Problem]) -> Iterator[Problem]:
    """Join pydantic's errors for one key, of which a union type has one for each member."""
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


def _of_detail(detail: Any, values: Mapping[str, Any], root: type[BaseModel]) -> Iterator[Problem]:  # noqa: ANN401
    """The problem behind one of pydantic's details; of a section that nobody could mean, one for each key in it."""
    problem, received = _to_problem(detail, values, root), detail["input"]
    is_section = detail["type"] == "extra_forbidden" and isinstance(received, Mapping)
    leaves = list(_leaves(received, problem.key)) if is_section else []
    # An experiment whose file lacks its header comes as a section too; one problem says that.
    if not leaves or (problem.hint and len(leaves) > 1) or problem.key == "experiment":
        yield problem
        return
    for key, value in leaves:
        yield Problem(key=key, value=value, has_value=True, message="no such key", hint=_meant(key, values, root))


def _meant(key: str, values: Mapping[str, Any], root: type[BaseModel]) -> str | None:
    """A hint with the known key whose last part is similar."""
    last = key.rpartition(".")[2]
    alike = [name for name in known_keys(values, root) if _is_alike(last, name.rpartition(".")[2])]
    close = difflib.get_close_matches(key, alike, n=1, cutoff=0)
    return f"did you mean {close[0]}?" if close else None


def _is_alike(word: str, other: str) -> bool:
    return bool(difflib.get_close_matches(word, [other], cutoff=0.7))


def _leaves(node: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    for name, value in node.items():
        if isinstance(value, Mapping) and value:
            yield from _leaves(value, f"{prefix}.{name}")
        else:
            yield f"{prefix}.{name}", value


def _to_problem(detail: Any, values: Mapping[str, Any], root: type[BaseModel]) -> Problem:  # noqa: ANN401 - ErrorDetails
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
        variants, _ = _variants_at(parts, values, root)
        tags = [name for variant in variants for name in get_args(variant.model_fields[tag].annotation)]
        key, received, context = f"{key}.{tag}", received.get(tag), {**context, "tags": ", ".join(map(repr, tags))}
    message = sentence_of({"type": kind, "ctx": context, "msg": detail["msg"], "input": detail.get("input")})
    hint = (_choose_option(key) if kind.startswith("union_tag") else None) or _close_to(received, context)
    return Problem(key=key, value=received, has_value=kind != "union_tag_not_found", message=message, hint=hint)


def sentence_of(detail: Mapping[str, Any]) -> str:
    """One of pydantic's errors in the runner's words: what the value must be."""
    # Behind a check of our own, pydantic takes a text for a list of characters.
    is_empty_text = detail["type"] == "too_short" and detail.get("input") == ""
    sentence = _SENTENCES.get("string_too_short" if is_empty_text else detail["type"])
    context = detail.get("ctx", {})
    if detail["type"] == "union_tag_not_found" and "tags" not in context:
        return f"its key {context['discriminator']} is missing"
    if sentence is None:
        return f"does not fit ({str(detail['msg']).rstrip('.')})"
    return sentence.format(**_readable(context))


def _readable(context: Mapping[str, Any]) -> dict[str, Any]:
    whole = {name: int(value) for name, value in context.items() if isinstance(value, float) and value.is_integer()}
    return {**context, **whole}


def _close_to(received: object, context: Mapping[str, Any]) -> str | None:
    """A hint with the allowed word that was probably meant."""
    allowed = re.findall(r"'([^']*)'", str(context.get("expected") or context.get("expected_tags") or ""))
    close = difflib.get_close_matches(received, allowed, n=1) if isinstance(received, str) else []
    return f"did you mean {close[0]}?" if close else None


def _choose_option(key: str) -> str | None:
    group, _, rest = key.partition(".")
    return f"choose an option with {group}=…" if group in VARIANT_KEYS and "." not in rest else None


def _key_parts(location: tuple[int | str, ...], values: Mapping[str, Any]) -> list[str]:
    """Pydantic's location without the names of union members in it, which are no keys."""
    parts: list[str] = []
    node: Any = values
    for part in location:
        if isinstance(node, Mapping):
            is_member = part not in node and part in [node.get(tag) for tag in _TAGS]
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
    """A hint for an unknown key: the option that has it, or a similar key in its section or elsewhere."""
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
    """A hint with the other option of the group that has the key."""
    tag = VARIANT_KEYS.get(group)
    if tag is None:
        return None
    for variant in variants_of(Config.model_fields[group].annotation):
        if name in variant.model_fields:
            options = ", ".join(map(str, get_args(variant.model_fields[tag].annotation)))
            return f"it belongs to {group}.{tag} = {options}"
    return None
