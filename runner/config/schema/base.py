"""What all config groups share: strict, frozen, nothing unknown, no defaults (those stand in conf/)."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


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
