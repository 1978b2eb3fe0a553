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


class ExportCall(Section):
    """`python -m runner export run=DIR`."""

    run: Annotated[str, Field(min_length=1)]
    """The run folder whose model is exported."""
    checkpoint: Annotated[str, Field(min_length=1)]
    """Which weights: best, last, or the name of a checkpoint, such as 0004-00000360."""
    format: Literal["onnx", "torch_export", "torchscript"]
    """ONNX; torch.export's .pt2; or TorchScript, which PyTorch has deprecated."""
    output: str | None
    """The file to write, which must not exist; null means RUN/export/model.onnx, model.pt2 or model.pt."""
    include_preprocessing: bool
    """True: uint8 images N × size × size × 3 in, already resized and cropped, probabilities out. False: normalised
    float32 images N × 3 × size × size in, logits out."""
    min_agreement: Annotated[float, Field(ge=0, le=1)]
    """Smallest share of validation images whose first guess must be PyTorch's; below it no file is kept."""


class ReportCall(Section):
    """`python -m runner report run=DIR`."""

    run: Annotated[str, Field(min_length=1)]
    """The run folder that is explained."""
    output: str | None
    """The HTML file to write, which must not exist; null means RUN/report.html, which is replaced."""


class RunsListCall(Section):
    """`python -m runner runs list`."""

    root: Annotated[str, Field(min_length=1)]
    """Folder at and under which runs are looked for."""
    status: Literal["running", "completed", "stopped", "failed", "pruned", "died", "damaged", "queued"] | None
    """Only runs of this status; died: it says running, but no process is left; damaged: run.json can't be read."""
    model: str | None
    """Only runs of this model; a pattern, such as resnet*."""
    data: str | None
    """Only runs on this data, such as digits, CIFAR10 or folder, or on this data.root; a pattern."""
    limit: Annotated[int, Field(ge=1)] | None
    """At most so many, the newest."""
    format: Literal["table", "json"]
    """A table for people, or JSON for programs."""


class RunsDiffCall(Section):
    """`python -m runner runs diff a=DIR b=DIR`."""

    a: Annotated[str, Field(min_length=1)]
    """One run folder."""
    b: Annotated[str, Field(min_length=1)]
    """The other run folder."""
    format: Literal["table", "json"]
    """Tables for people, or JSON for programs."""


class RunsRepeatCall(Section):
    """`python -m runner runs repeat run=DIR`."""

    run: Annotated[str, Field(min_length=1)]
    """The run folder whose config a new run takes."""


# By command; a command that is not here takes the config of an experiment and nothing else.
CALLS: dict[str, type[Section]] = {
    "resume": ResumeCall,
    "export": ExportCall,
    "report": ReportCall,
    "runs list": RunsListCall,
    "runs diff": RunsDiffCall,
    "runs repeat": RunsRepeatCall,
}
# Commands that take their own keys alone; all others lay what else is typed over the saved config.
WITHOUT_CONFIG = frozenset({"report", "runs list", "runs diff"})
