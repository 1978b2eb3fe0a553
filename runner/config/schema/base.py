"""What all config groups share: how values are judged, and what another value of a key changes.

Each field, or its group, is marked with its effect. What a resumed run may change, what makes two trials the same, what
the machines of a run must agree on and what an evaluation looks at are derived from these marks.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal, get_args, get_origin

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


def variants_of(annotation: Any) -> list[type[BaseModel]]:  # noqa: ANN401 - a type
    """The section classes behind a field: the class itself, or the members of a union."""
    if get_origin(annotation) is Annotated:
        return variants_of(get_args(annotation)[0])
    candidates = (annotation, *get_args(annotation))
    return [item for item in candidates if isinstance(item, type) and issubclass(item, BaseModel)]
