"""Schemas and readers of the files in a run folder, which may come from somebody else.

A file is validated when it is read. Keys that an older or unfinished run lacks are optional; a key with a value of the
wrong type or range makes the file damaged.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from runner.base.errors import CheckpointError
from runner.base.untrusted import UntrustedFileError, parse_json, printable, read_json, read_text, unreadable
from runner.config.schema.checks.validation import sentence_of

Status = Literal["running", "completed", "stopped", "failed", "pruned"]
Pointer = Literal["last", "best"]
Count = Annotated[int, Field(ge=0, le=2**53)]
Fraction = Annotated[float, Field(ge=0, le=1)]
Seconds = Annotated[float, Field(ge=0, le=1e12)]
CHECKPOINT_NAME = re.compile(r"[0-9]{1,18}-[0-9]{1,18}")
JobId = Annotated[str, Field(pattern=r"^[0-9]{1,18}$")]
CheckpointName = Annotated[str, Field(pattern=f"^{CHECKPOINT_NAME.pattern}$")]
_MOST_POINTER_BYTES = 256
_MOST_SHOWN = 80


class Contents(BaseModel):
    """The schema of one file; keys that it does not name may hold anything."""

    model_config = ConfigDict(
        extra="allow", strict=True, allow_inf_nan=False, defer_build=True, protected_namespaces=(), frozen=True
    )


class BestRecord(Contents):
    """The best epoch, in run.json."""

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


class _Snapshot(Contents):
    sha256: str
    folder: str = "."


class _Test(Contents):
    count: Count
    top1: Fraction
    top5: Fraction | None = None
    loss: float | None = None
    expected_calibration_error: Fraction | None = None


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
    name: str | None = None
    group: str | None = None
    tags: dict[str, str | int | float | bool] = {}
    notes: str | None = None
    command: str | None = None
    overrides: list[str] = []
    experiment: _Experiment | None = None
    data: _Data | None = None
    git: _Git | None = None
    snapshot: _Snapshot | None = None
    local_packages: dict[str, str] = {}
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


class MetricsRow(Contents):
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
    """The best epoch, in state.json of a checkpoint."""

    metric: Literal["val_loss", "val_top1", "val_top5"]
    value: float
    epoch: Count
    checkpoint: CheckpointName
    weights: Literal["raw", "ema"]


class ProgressRecord(Contents):
    """The progress of a training, in state.json of a checkpoint."""

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
    """state.json of a checkpoint, as resuming needs it."""

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
    """state.json of a checkpoint, as far as evaluating its weights needs it."""

    progress: ProgressRecord


class StateSummary(Contents):
    """state.json of a checkpoint, as far as `runs` and reports show it."""

    data_fingerprint: str | None = None
    numerics: dict[str, str | int | float | bool | None] | None = None


class _File(Contents):
    sha256: str
    bytes: Count


class Manifest(Contents):
    """manifest.json of a checkpoint: size and digest of each other file."""

    __pydantic_extra__: dict[str, _File]


class SlurmJob(Contents):
    """trial.job.json: the number of the SLURM job of a trial."""

    job_id: JobId


class _Average(Contents):
    precision: Fraction
    recall: Fraction
    f1: Fraction


class _OfClass(_Average):
    name: str = Field(alias="class")
    support: Count


class Metrics(Contents):
    """metrics.json of an evaluation."""

    split: Literal["train", "val", "test"] = "val"
    count: Annotated[int, Field(ge=1, le=2**53)]
    correct: Count
    num_skipped: Count = 0
    top1: Fraction
    top5: Fraction
    loss: float
    expected_calibration_error: Fraction = 0.0
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
            raise ValueError(f"confusion_matrix does not fit {num_classes} classes")
        return self


def read_object(file: Path, rules: type[Contents]) -> dict[str, Any]:
    """The object in a JSON file.

    Raises:
        FileNotFoundError: the file does not exist.
        CheckpointError: it can't be read, or does not fit the schema.
    """
    try:
        values = read_json(file)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise FileNotFoundError(*error.args[:2], str(file)) from error
    except (OSError, UntrustedFileError) as error:
        raise CheckpointError(unreadable(file, error)) from error
    return validated(values, rules, printable(str(file)))


def validated(values: object, rules: type[Contents], place: str, part: str = "") -> dict[str, Any]:
    """The values unchanged, once they are found to fit the schema.

    Raises:
        CheckpointError: naming the place, the part of it and the first key that does not fit.
    """
    if not isinstance(values, dict):
        raise CheckpointError(f"{place} is damaged: {part}it holds no object")
    try:
        rules.model_validate(values)
    except ValidationError as error:
        raise CheckpointError(f"{place} is damaged: {part}{first_problem(error)}") from error
    return values


def first_problem(error: ValidationError) -> str:
    """The first key that does not fit the schema and the reason, with the number of further ones."""
    first, *others = error.errors(include_url=False, include_input=False)
    key = printable(".".join(map(str, first["loc"])))[:_MOST_SHOWN]
    more = f" (and {len(others)} more)" if others else ""
    message = sentence_of(first)
    return f"{key}: {message}{more}" if key else f"{message}{more}"


def read_rows(file: Path) -> tuple[dict[str, Any], ...]:
    """The rows of metrics.jsonl, none before the first epoch ends; a last line that a kill cut short is left out.

    Raises:
        CheckpointError: when it can't be read, or another line is damaged.
    """
    return tuple(row for row, _ in read_lines(file))


def read_lines(file: Path) -> list[tuple[dict[str, Any], str]]:
    """The rows of metrics.jsonl like :func:`read_rows`, each with its text in the file.

    Raises:
        CheckpointError: when it can't be read, or another line is damaged.
    """
    try:
        text = read_text(file)
    except (FileNotFoundError, NotADirectoryError):
        return []
    except (OSError, UntrustedFileError) as error:
        raise CheckpointError(unreadable(file, error)) from error
    rows = []
    for number, line in enumerate(text.splitlines(keepends=True), 1):
        if not line.endswith("\n"):
            continue
        try:
            row = parse_json(line.rstrip("\n"), f"line {number}")
        except UntrustedFileError as error:
            raise CheckpointError(f"{printable(str(file))} is damaged: {error}; mend or remove it") from error
        rows.append((validated(row, MetricsRow, printable(str(file)), f"line {number}: "), line))
    return rows


def read_classes(run_dir: Path) -> tuple[str, ...]:
    """The class names of a run's classes.json, in index order.

    Raises:
        CheckpointError: it is missing, can't be read, or holds no list of different names.
    """
    file = run_dir / "classes.json"
    try:
        classes = read_json(file)
    except FileNotFoundError as error:
        raise CheckpointError(f"{run_dir} has no classes.json: the run has not begun, or is damaged") from error
    except (OSError, UntrustedFileError) as error:
        raise CheckpointError(unreadable(file, error)) from error
    is_list = isinstance(classes, list) and bool(classes) and all(isinstance(name, str) for name in classes)
    if not is_list or len(set(classes)) != len(classes):
        raise CheckpointError(f"{printable(str(file))} is damaged: it holds no list of different names")
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
        raise CheckpointError(unreadable(file, error)) from error
    if not CHECKPOINT_NAME.fullmatch(name):
        held = printable(name)[:_MOST_SHOWN]
        raise CheckpointError(f"{printable(str(file))} is damaged: it holds {held!r}, which is no name of a checkpoint")
    return name
