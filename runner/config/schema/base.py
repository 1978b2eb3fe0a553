"""The base class of all config groups, and the marks for what another value of a key changes.

Each field, or its group, is marked with an :class:`Effect`. From these marks is derived what a resumed run may change,
which trials are the same, what the machines of a run must agree on and what an evaluation compares.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal, get_args, get_origin

from pydantic import AfterValidator, BaseModel, ConfigDict

from runner.base.user_paths import refuse_address

AS_TYPED = "as typed"
"""Marks a key whose value is a path or other plain text, which Hydra's grammar must not interpret."""

LocalPath = Annotated[str, AfterValidator(refuse_address)]
"""A path of this machine, and no address."""


class ConfigSection(BaseModel):
    """One config group. Values are not converted: neither "5" nor true is a number, 5.5 is no integer."""

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        strict=True,
        allow_inf_nan=False,
        # Pydantic builds each class when it is first used: a command uses few of some seventy.
        defer_build=True,
        protected_namespaces=(),
    )


@dataclass(frozen=True, kw_only=True)
class Effect:
    """What another value of a key changes."""

    on_resume: Literal["free", "other bits", "asked", "never"]
    """Whether a resumed run may have another value: free; other bits: yes, but its results are not bitwise those of an
    unstopped run; asked: only where resume.allow names the key; never: its checkpoints don't fit."""
    tells_trials_apart: bool = True
    """Whether trials with different values are different trials."""
    may_differ_between_machines: bool = False
    """Whether each machine of a run may have its own value."""
    gives_more_to_do: bool = False
    """Whether a completed run can be continued with another value."""
    at_evaluation: Literal["images", "model", "nothing"] = "nothing"
    """Whether the key decides which images are evaluated, belongs to the model, or neither."""


RESULT = Effect(on_resume="asked", at_evaluation="images")
"""Changes the result, and possibly the images of an evaluation."""
TRAINING = Effect(on_resume="asked")
"""Changes the result of training, not that of evaluating a trained model."""
PREPROCESSING = Effect(on_resume="asked", at_evaluation="model")
"""Changes the result; part of the packaged model."""
START = Effect(on_resume="never", at_evaluation="images")
"""Checkpoints with another value don't fit."""
FIRST_LAYER = Effect(on_resume="never", at_evaluation="model")
"""Checkpoints with another value don't fit; part of the packaged model."""
LENGTH = Effect(on_resume="free", gives_more_to_do=True)
"""Decides when training ends."""
AHEAD = Effect(on_resume="free")
"""Changes only the rest of the training, such as the share of each process."""
LAST_BITS = Effect(on_resume="other bits")
"""Changes the result by rounding only."""
IMAGES = Effect(on_resume="free", may_differ_between_machines=True, at_evaluation="images")
"""Where the images are; the images themselves are compared by their fingerprint."""
PLACE = Effect(on_resume="free", tells_trials_apart=False, may_differ_between_machines=True)
"""A path or number of this machine, which does not change the result."""
NONE = Effect(on_resume="free", tells_trials_apart=False)
"""Does not change the result."""


def variants_of(annotation: Any) -> list[type[BaseModel]]:  # noqa: ANN401 - a type
    """The section classes of a field's type: the class itself, or the members of a union.

    Entries of a list are none: they have no key of their own.
    """
    if get_origin(annotation) is Annotated:
        return variants_of(get_args(annotation)[0])
    if get_origin(annotation) is tuple:
        return []
    candidates = (annotation, *get_args(annotation))
    return [item for item in candidates if isinstance(item, type) and issubclass(item, BaseModel)]
