"""What the files of a run or sweep folder may hold: read once, here, and judged before anybody relies on it.

The folder may come from elsewhere. What is missing in an older or unfinished run is allowed to be missing; what is
there is of the right kind, or the file is damaged.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from runner.base.errors import CheckpointError
from runner.base.untrusted import UntrustedFileError, parse_json, printable, read_json, read_text

Status = Literal["running", "completed", "stopped", "failed", "pruned"]
Pointer = Literal["last", "best"]
Count = Annotated[int, Field(ge=0, le=2**53)]
EvaluationSplit = Annotated[float, Field(ge=0, le=1)]
Seconds = Annotated[float, Field(ge=0, le=1e12)]
CHECKPOINT_NAME = re.compile(r"[0-9]{1,18}-[0-9]{1,18}")
JobId = Annotated[str, Field(pattern=r"^[0-9]{1,18}$")]
CheckpointName = Annotated[str, Field(pattern=f"^{CHECKPOINT_NAME.pattern}$")]
_MOST_POINTER_BYTES = 256
_MOST_SHOWN = 80


class Contents(BaseModel):
    """Rules of one file. Keys that nobody relies on may hold anything."""

    model_config = ConfigDict(
        extra="allow", strict=True, allow_inf_nan=False, defer_build=True, protected_namespaces=(), frozen=True
    )


class BestRecord(Contents):
    """The best epoch, as run.json tells it."""

    metric: str
    value: float
    epoch: Count
    weights: Literal["raw", "ema"] = "raw"


class _Experiment(Contents):
    model: str | None = None
    data: str | None = None
    data_root: str | None = None


class _Data(Contents):
    fingerprint: str | None = None
    num_train: Count | None = None
    num_val: Count | None = None
    num_test: Count | None = None
    num_classes: Count | None = None


class _Git(Contents):
    commit: str | None = None
    dirty: bool | None = None


class _Test(Contents):
    count: Count
    top1: EvaluationSplit
    top5: EvaluationSplit | None = None
    loss: float | None = None
    expected_calibration_error: EvaluationSplit | None = None


class Failure(Contents):
    """Why a run failed."""

    name: str
    message: str
    rank: int | None = None
    host: str | None = None


class RunRecord(Contents):
    """run.json."""

    status: Status
    attempts: Annotated[int, Field(ge=0, le=2**31)]
    command: str | None = None
    overrides: list[str] = []
    experiment: _Experiment | None = None
    data: _Data | None = None
    git: _Git | None = None
    world_size: Annotated[int, Field(ge=1, le=2**31)] = 1
    launcher: str | None = None
    versions: dict[str, str] | None = None
    host: str | None = None
    device: str | None = None
    start: str | None = None
    end: str | None = None
    best: BestRecord | None = None
    test: _Test | None = None
    error: Failure | None = None
    warnings: list[str] | None = None
    resumes: list[dict[str, Any]] = []
    damaged: list[dict[str, Any]] = []


class Row(Contents):
    """A line of metrics.jsonl."""

    __pydantic_extra__: dict[str, float | str | None]

    epoch: Count
    step: Count | None = None
    train_images_per_second: Annotated[float, Field(ge=0)] = 0.0
    train_seconds: Seconds = 0.0
    data_wait_seconds: Seconds = 0.0
    evaluation_seconds: Seconds = 0.0
    checkpoint_seconds: Seconds = 0.0
    epoch_seconds: Seconds = 0.0
    lr: float | None = None
    train_loss: float | None = None
    train_top1: float | None = None
    val_loss: float | None = None
    val_top1: float | None = None
    val_top5: float | None = None
    val_ema_loss: float | None = None
    val_ema_top1: float | None = None
    val_ema_top5: float | None = None


class BestOfProgress(Contents):
    """The best epoch, as a checkpoint tells it."""

    metric: Literal["val_loss", "val_top1", "val_top5"]
    value: float
    epoch: Count
    checkpoint: CheckpointName
    weights: Literal["raw", "ema"]


class ProgressRecord(Contents):
    """Where a training stood."""

    model_config = ConfigDict(extra="forbid")

    epoch: Count
    position: Count
    step: Count
    best: BestOfProgress | None
    lowest_val_loss: float | None
    epochs_without_improvement: Count


class _Numerics(Contents):
    device: str
    precision: Literal["fp32", "bf16", "fp16"]
    num_threads: Annotated[int, Field(ge=1, le=4096)]
    torch: str


class _Meter(Contents):
    loss: float
    correct: Annotated[float, Field(ge=0)]
    count: Count
    skipped: Count = 0
    samples_digest: Annotated[int, Field(ge=0, lt=2**64)]
    train_seconds: Seconds = 0.0
    data_wait_seconds: Seconds = 0.0
    evaluation_seconds: Seconds = 0.0
    checkpoint_seconds: Seconds = 0.0
    epoch_seconds: Seconds = 0.0


class State(Contents):
    """state.json of a checkpoint, for whoever goes on from it."""

    format: Literal[1]
    progress: ProgressRecord
    meter: _Meter
    learning_rate: float
    scaler: dict[str, float]
    ema_num_averaged: Count | None
    next_ids_digest: Annotated[int, Field(ge=0, lt=2**64)]
    data_fingerprint: str
    classes: list[str]
    numerics: _Numerics


class StateOfWeights(Contents):
    """state.json of a checkpoint, for whoever takes its weights."""

    progress: ProgressRecord


class StateTold(Contents):
    """state.json of a checkpoint, for whoever tells of the run."""

    data_fingerprint: str | None = None
    numerics: dict[str, str | int | float | bool | None] | None = None


class _File(Contents):
    sha256: str
    bytes: Count


class Manifest(Contents):
    """manifest.json of a checkpoint: its other files by their names."""

    __pydantic_extra__: dict[str, _File]


class Job(Contents):
    """trial.job.json: the number of SLURM's job."""

    job_id: JobId


class _Average(Contents):
    precision: EvaluationSplit
    recall: EvaluationSplit
    f1: EvaluationSplit


class _OfClass(_Average):
    name: str = Field(alias="class")
    support: Count


class Metrics(Contents):
    """metrics.json of an evaluation."""

    split: Literal["train", "val", "test"] = "val"
    count: Annotated[int, Field(ge=1, le=2**53)]
    correct: Count
    num_skipped: Count = 0
    top1: EvaluationSplit
    top5: EvaluationSplit
    loss: float
    expected_calibration_error: EvaluationSplit = 0.0
    classes: list[str]
    per_class: list[_OfClass]
    macro_average: _Average
    weighted_average: _Average
    confusion_matrix: list[list[Count]] | dict[Literal["truth", "predicted", "count"], list[Count]]

    @model_validator(mode="after")
    def _of_one_size(self) -> Metrics:
        num_classes, matrix = len(self.classes), self.confusion_matrix
        if num_classes == 0 or len(self.per_class) != num_classes:
            raise ValueError(f"{num_classes} classes, but {len(self.per_class)} entries per_class")
        if isinstance(matrix, list):
            is_square = len(matrix) == num_classes and all(len(row) == num_classes for row in matrix)
        else:
            lengths = {len(matrix.get(name, [])) for name in ("truth", "predicted", "count")}
            named = (*matrix.get("truth", []), *matrix.get("predicted", []))
            is_square = len(matrix) == 3 and len(lengths) == 1 and all(number < num_classes for number in named)
        if not is_square:
            raise ValueError(f"confusion_matrix is none of {num_classes} classes")
        return self


def read_object(file: Path, rules: type[Contents]) -> dict[str, Any]:
    """The object in a JSON file.

    Raises:
        FileNotFoundError: there is none.
        CheckpointError: it can't be read, or a key of it breaks the rules.
    """
    try:
        values = read_json(file)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise FileNotFoundError(*error.args[:2], str(file)) from error
    except OSError as error:
        raise CheckpointError(f"{shown(file)} can't be read: {error.strerror}") from error
    except UntrustedFileError as error:
        raise CheckpointError(f"{shown(file)} can't be read: {error}") from error
    return judged(values, rules, shown(file))


def judged(values: object, rules: type[Contents], place: str, part: str = "") -> dict[str, Any]:
    """Values that keep the rules, as they are.

    Raises:
        CheckpointError: naming the place, the part of it and the first key that breaks them.
    """
    if not isinstance(values, dict):
        raise CheckpointError(f"{place} is damaged: {part}it holds no object")
    try:
        rules.model_validate(values)
    except ValidationError as error:
        raise CheckpointError(f"{place} is damaged: {part}{what_is_wrong(error)}") from error
    return values


def what_is_wrong(error: ValidationError) -> str:
    """The first key that breaks the rules, and how."""
    first, *others = error.errors(include_url=False, include_context=False, include_input=False)
    key = printable(".".join(map(str, first["loc"])))[:_MOST_SHOWN]
    more = f" (and {len(others)} more)" if others else ""
    return f"{key}: {first['msg']}{more}" if key else f"{first['msg']}{more}"


def read_rows(file: Path) -> tuple[dict[str, Any], ...]:
    """The rows of metrics.jsonl, none before the first epoch ends; a last line that a kill cut short is left out.

    Raises:
        CheckpointError: when it can't be read, or another line is damaged.
    """
    return tuple(row for row, _ in _rows_and_lines(file))


def read_lines(file: Path) -> tuple[tuple[dict[str, Any], str], ...]:
    """The same, each with its line as it stands there.

    Raises:
        CheckpointError: when it can't be read, or another line is damaged.
    """
    return tuple(_rows_and_lines(file))


def _rows_and_lines(file: Path) -> Iterator[tuple[dict[str, Any], str]]:
    try:
        text = read_text(file)
    except (FileNotFoundError, NotADirectoryError):
        return
    except OSError as error:
        raise CheckpointError(f"{shown(file)} can't be read: {error.strerror}") from error
    except UntrustedFileError as error:
        raise CheckpointError(f"{shown(file)} can't be read: {error}") from error
    for number, line in enumerate(text.splitlines(keepends=True), 1):
        if not line.endswith("\n"):
            continue
        try:
            row = parse_json(line, f"line {number}")
        except UntrustedFileError as error:
            raise CheckpointError(f"{shown(file)} is damaged: {error}; mend or remove it") from error
        yield judged(row, Row, shown(file), f"line {number}: "), line


def read_classes(file: Path) -> tuple[str, ...]:
    """The class names of classes.json, in index order.

    Raises:
        FileNotFoundError: there is none.
        CheckpointError: it can't be read, or holds no list of different names.
    """
    try:
        classes = read_json(file)
    except FileNotFoundError:
        raise
    except (OSError, UntrustedFileError) as error:
        raise CheckpointError(f"{shown(file)} can't be read: {error}") from error
    is_list = isinstance(classes, list) and bool(classes) and all(isinstance(name, str) for name in classes)
    if not is_list or len(set(classes)) != len(classes):
        raise CheckpointError(f"{shown(file)} is damaged: it holds no list of different names")
    return tuple(classes)


def read_pointer(file: Path) -> str | None:
    """The name of a checkpoint that `last` or `best` holds; None before the first checkpoint.

    Raises:
        CheckpointError: it holds anything else, such as a path that leads elsewhere.
    """
    try:
        name = read_text(file, max_bytes=_MOST_POINTER_BYTES).strip()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, UntrustedFileError) as error:
        raise CheckpointError(f"{shown(file)} can't be read: {error}") from error
    if not CHECKPOINT_NAME.fullmatch(name):
        told = printable(name)[:_MOST_SHOWN]
        raise CheckpointError(f"{shown(file)} is damaged: it holds {told!r}, which is no name of a checkpoint")
    return name


def shown(file: Path) -> str:
    """A path for a message."""
    return printable(str(file))
