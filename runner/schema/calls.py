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


class EvaluateCall(Section):
    """`python -m runner evaluate run=DIR`."""

    run: Annotated[str, Field(min_length=1)]
    """The run folder whose weights are evaluated."""
    checkpoint: Annotated[str, Field(min_length=1)]
    """Which weights: best, last, or the name of a checkpoint."""
    split: Literal["val", "test", "train"]
    """Which split of the data."""
    output: str | None
    """Folder for the results; null means RUN/evaluation, and for other weights or images a folder in it."""


class PredictCall(Section):
    """`python -m runner predict run=DIR input=FOLDER output=FILE.csv`."""

    run: str | None
    """The run folder whose packaged model scores."""
    model: str | None
    """A packaged model alone: the folder model/ of a run."""
    input: Annotated[str, Field(min_length=1)]
    """A folder (with all folders in it), an image, a .txt with a path on each line, or a .csv with a column `path`."""
    output: Annotated[str, Field(min_length=1)]
    """The file to write: .csv, .jsonl or .parquet."""
    root: str | None
    """Folder at which the relative paths of a list start; null means the folder of the list."""
    batch_size: Annotated[int, Field(ge=1)]
    """Images that are scored at once."""
    workers: Literal["auto"] | Annotated[int, Field(ge=0, le=256)]
    """Processes that load images; 0 loads in the scoring process, auto chooses."""
    device: Literal["auto", "cpu", "cuda", "mps"]
    """Where to compute; auto takes CUDA, then MPS, then the CPU."""
    precision: Literal["auto", "fp32", "bf16", "fp16"]
    """Number format; auto takes bf16 where the hardware is fast at it, as training and evaluation do."""
    resume: bool
    """Go on with the unfinished OUTPUT.partial of an earlier call with the same model and input."""


# By command; a command that is not here takes the config of an experiment and nothing else.
CALLS: dict[str, type[Section]] = {"resume": ResumeCall, "evaluate": EvaluateCall, "predict": PredictCall}
