"""Rules of what commands take besides the config of an experiment; one class per command."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from runner.schema.base import Section


class ResumeRules(Section):
    """How far a resumed run may differ from what it was."""

    allow: tuple[str, ...]
    """Keys or groups, such as [optimizer.lr, data], whose change is wanted although it changes the meaning of the run;
    `data` also allows that the data set itself has changed."""


class ResumeCall(Section):
    """`python -m runner resume run=DIR`."""

    run: Annotated[str, Field(min_length=1)]
    """The run folder that goes on."""
    resume: ResumeRules
    """How far it may differ from what it was."""


class DoctorRules(Section):
    """What is tried."""

    measure: bool
    """Train a few steps on the real data, and keep nothing of them; false looks at the machine only."""
    seconds: Annotated[float, Field(gt=0, le=600)]
    """About how long each of the measurements takes: training, the device alone, the loader alone."""
    compile: bool
    """Also measure whether trainer.compile pays, which takes a minute or so."""


class DoctorCall(Section):
    """`python -m runner doctor`."""

    format: Literal["table", "json"]
    """For people or for scripts."""
    doctor: DoctorRules
    """What is tried."""


# By command; a command that is not here takes the config of an experiment and nothing else.
CALLS: dict[str, type[Section]] = {"resume": ResumeCall, "doctor": DoctorCall}
