"""What all config groups share: how values are judged, and what another value of a key changes.

Each field, or its group, is marked with its effect. What a resumed run may change, what makes two trials the same, what
the machines of a run must agree on and what an evaluation looks at are derived from these marks.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Literal

from pydantic import BaseModel, ConfigDict

AS_TYPED = "as typed"
"""Marks a key whose value is a path or other plain text: it is taken as typed, whatever Hydra's grammar says."""


class Section(BaseModel):
    """One config group. Values are judged as they are: "five" or true is no number, 5.5 is no count."""

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        strict=True,
        allow_inf_nan=False,
        # Each class is built when it is first needed: a start needs one or two of some seventy.
        defer_build=True,
        protected_namespaces=(),
    )


@dataclass(frozen=True, kw_only=True)
class Effect:
    """What another value of a key changes."""

    on_resume: Literal["free", "other bits", "asked", "never"]
    """Whether a run may continue with another value: freely; freely, but with other bits than without a stop; only
    where resume.allow names the key; or never, because its checkpoints are made of it."""
    tells_trials_apart: bool = True
    """Whether two trials with different values are two."""
    may_differ_between_machines: bool = False
    """Whether each machine of a run may have a value of its own."""
    gives_more_to_do: bool = False
    """Whether a completed run may continue because of it."""
    at_evaluation: Literal["images", "model", "nothing"] = "nothing"
    """Whether it decides which images a trained model sees, belongs to the model, or neither."""


RESULT = Effect(on_resume="asked", at_evaluation="images")
"""The result is another, and the images of an evaluation may be others."""
TRAINING = Effect(on_resume="asked")
"""The result is another; a model that is trained already is evaluated in the same way."""
PREPROCESSING = Effect(on_resume="asked", at_evaluation="model")
"""The result is another; what the model sees belongs to the model."""
START = Effect(on_resume="never", at_evaluation="images")
"""Checkpoints are made of it."""
LENGTH = Effect(on_resume="free", gives_more_to_do=True)
"""When training ends."""
AHEAD = Effect(on_resume="free")
"""Only what is still to come is another, such as the share of each process."""
LAST_BITS = Effect(on_resume="other bits")
"""The result is the same but for rounding."""
IMAGES = Effect(on_resume="free", may_differ_between_machines=True, at_evaluation="images")
"""Where the images are: the images themselves are compared by other means."""
PLACE = Effect(on_resume="free", tells_trials_apart=False, may_differ_between_machines=True)
"""Of this machine; the result is the same."""
NONE = Effect(on_resume="free", tells_trials_apart=False)
"""The result is the same."""


@cache
def effects() -> Mapping[str, Effect]:
    """The effect of each key, and of each group that has one, by full key; those of all options of a group.

    Raises:
        AssertionError: a field and its group have no mark, or options of a group mark a key differently.
    """
    from runner.config.schema import Config  # noqa: PLC0415 - whose fields bear these marks

    found: dict[str, Effect] = {}
    for key, effect in _marked(Config, "", None):
        assert found.setdefault(key, effect) == effect, f"{key} is marked with two effects"
    return found


def _marked(section: type[BaseModel], prefix: str, inherited: Effect | None) -> Iterator[tuple[str, Effect]]:
    from runner.config.schema.judge import variants_of  # noqa: PLC0415 - imports Config

    for name, field in section.model_fields.items():
        own = next((mark for mark in field.metadata if isinstance(mark, Effect)), inherited)
        variants = variants_of(field.annotation)
        assert own is not None or variants, f"{prefix}{name} bears no mark of its effect"
        if own is not None:
            yield f"{prefix}{name}", own
        for variant in variants:
            yield from _marked(variant, f"{prefix}{name}.", own)


def effect_of(key: str) -> Effect:
    """The effect of a key, or of the nearest section above it that has one; a key that is not known counts."""
    while key and key not in effects():
        key = key.rpartition(".")[0]
    return effects()[key] if key else RESULT


def keys_as_typed(section: type[BaseModel], prefix: str = "") -> Iterator[str]:
    """The full keys of a section that are marked with :data:`AS_TYPED`."""
    from runner.config.schema.judge import variants_of  # noqa: PLC0415

    for name, field in section.model_fields.items():
        if AS_TYPED in field.metadata:
            yield f"{prefix}{name}"
        for variant in variants_of(field.annotation):
            yield from keys_as_typed(variant, f"{prefix}{name}.")
