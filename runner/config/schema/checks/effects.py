"""The effect of each config key, from the marks of the schema, and which changes a resumed run may have."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any

from pydantic import BaseModel

from runner.base.errors import ConfigError, Problem
from runner.config.schema import Config
from runner.config.schema.base import AS_TYPED, RESULT, Effect, variants_of
from runner.config.schema.checks.validation import did_you_mean, known_keys


@cache
def effects() -> Mapping[str, Effect]:
    """The effect of each key, and of each marked group, by full key, over all options of the groups.

    Raises:
        AssertionError: neither a field nor its group has a mark, or options of a group mark a key differently.
    """
    found: dict[str, Effect] = {}
    for key, effect in _marked(Config, "", None):
        assert found.setdefault(key, effect) == effect, f"{key} is marked with two effects"
    return found


def _marked(section: type[BaseModel], prefix: str, inherited: Effect | None) -> Iterator[tuple[str, Effect]]:
    for name, field in section.model_fields.items():
        own = next((mark for mark in field.metadata if isinstance(mark, Effect)), inherited)
        variants = variants_of(field.annotation)
        assert own is not None or variants, f"{prefix}{name} has no mark of its effect"
        if own is not None:
            yield f"{prefix}{name}", own
        for variant in variants:
            yield from _marked(variant, f"{prefix}{name}.", own)


def effect_of(key: str) -> Effect:
    """The effect of a key or of the nearest marked section above it; RESULT for an unknown key."""
    while key and key not in effects():
        key = key.rpartition(".")[0]
    return effects()[key] if key else RESULT


def keys_as_typed(section: type[BaseModel], prefix: str = "") -> Iterator[str]:
    """The full keys of a section that are marked with :data:`AS_TYPED`."""
    for name, field in section.model_fields.items():
        if AS_TYPED in field.metadata:
            yield f"{prefix}{name}"
        for variant in variants_of(field.annotation):
            yield from keys_as_typed(variant, f"{prefix}{name}.")


def check_changes(saved: Config, wanted: Config, *, finished_epochs: int, allow: Sequence[str]) -> list[str]:
    """Check whether a run may be resumed with another config.

    Args:
        saved: the config of the run so far.
        wanted: the config to resume with.
        finished_epochs: epochs that the run has finished.
        allow: resume.allow: keys or groups that may change although they change the result.

    Returns:
        Messages about the allowed changes, for the log.

    Raises:
        ConfigError: with each change that is not allowed.
    """
    notes: list[str] = []
    problems = list(_unknown(allow, wanted))
    # Compared as saved, where values of the environment, which may be secrets, are references.
    for key, old, new in changes(saved.to_save(), wanted.to_save()):
        change = f"{key}: {old} → {new}"
        if key == "trainer.epochs":
            if wanted.trainer.epochs < finished_epochs:
                message = f"the run has already finished {finished_epochs} epochs; give at least as many"
                problems.append(Problem(key=key, value=new, has_value=True, message=message))
            is_stretched = wanted.schedule.name in ("poly", "cosine")
            stretched = (
                f"; the curve of the {wanted.schedule.name} schedule is stretched over {wanted.trainer.epochs} epochs, "
                "so the learning rate jumps here"
            )
            notes.append(change + stretched if is_stretched else change)
            continue
        match "free" if _is_under(key, allow) and effect_of(key).on_resume != "never" else effect_of(key).on_resume:
            case "free":
                notes.append(change)
            case "other bits":
                notes.append(f"{change}: the results will not be bitwise those of a run without a stop")
            case "never":
                message = f"the run was started with {old}, and its checkpoints don't fit another value"
                problems.append(Problem(key=key, value=new, has_value=True, message=message, hint="start a new run"))
            case "asked":
                message = f"the run was started with {old}; another value changes what it means"
                hint = f"start a new run, or allow the change with 'resume.allow=[{key}]'"
                problems.append(Problem(key=key, value=new, has_value=True, message=message, hint=hint))
    if problems:
        raise ConfigError(problems)
    return notes


def changes(old: Any, new: Any, key: str = "") -> Iterator[tuple[str, Any, Any]]:  # noqa: ANN401 - plain values
    """Yield (key, old value, new value) for each key that differs; None stands for a missing key."""
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        for name in [*old, *(name for name in new if name not in old)]:
            yield from changes(old.get(name), new.get(name), f"{key}.{name}" if key else str(name))
    elif old != new:
        yield key, old, new


def _unknown(allow: Sequence[str], wanted: Config) -> Iterator[Problem]:
    known = set(known_keys(wanted.model_dump(mode="json")))
    for key in allow:
        if key not in known:
            hint = did_you_mean(key, known)
            yield Problem(key="resume.allow", value=key, has_value=True, message="no such key or group", hint=hint)


def _is_under(key: str, allowed: Sequence[str]) -> bool:
    return any(key == item or key.startswith(f"{item}.") for item in allowed)
