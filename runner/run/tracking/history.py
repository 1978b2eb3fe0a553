"""What a run folder tells a tracker: facts, the config, and metrics by step and epoch."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tensorboard.backend.event_processing.event_file_loader import (  # type: ignore[import-untyped]
    EventFileLoader,
)

from runner.base.files import sha256_of
from runner.base.safe_text import mask_credentials_in
from runner.base.timeline import parse_moment
from runner.config.saved import read_values
from runner.run.contents import read_rows
from runner.run.run_folder import read_record

STEP_TAGS = ("learning_rate", "train/loss", "train/top1", "train/images_per_second")
"""The curves of TensorBoard with a point every trainer.print_every steps."""


@dataclass(frozen=True, kw_only=True)
class Point:
    """Metrics of one step, or of an epoch at its last step."""

    step: int
    milliseconds: int
    """Since 1970; the same each time the folder is read, so that a server knows a point that it has."""
    values: Mapping[str, float]


@dataclass(frozen=True, kw_only=True)
class FolderFacts:
    """All that the folder of a run holds for a tracker."""

    record: Mapping[str, Any]
    """run.json, without credentials."""
    config: Mapping[str, str]
    """The resolved config by full key."""
    steps: tuple[Point, ...]
    epochs: tuple[Point, ...]
    rows: tuple[Mapping[str, Any], ...]
    """metrics.jsonl."""
    is_alive: bool
    """Whether a process trains the run."""
    model_sha256: str | None
    """Of the packaged weights, once the run is completed."""

    @property
    def status(self) -> str:
        """As in run.json; died: it says running, and no process is left."""
        status = str(self.record["status"])
        return "died" if status == "running" and not self.is_alive else status

    @property
    def start_milliseconds(self) -> int:
        """When the run began, since 1970."""
        return milliseconds_of(self.record.get("start"))


class RunHistory:
    """Reads a run folder again and again; event files from where the last reading ended."""

    def __init__(self, run_dir: Path) -> None:
        self.run_dir = run_dir
        self._loaders: dict[Path, Any] = {}
        self._steps: dict[int, dict[str, float]] = {}
        self._moments: dict[int, int] = {}
        self._config: dict[str, str] | None = None
        self._rows: tuple[Mapping[str, Any], ...] = ()
        self._rows_stamp: tuple[int, int] | None = None
        self._digest_of_attempt: tuple[int, str] | None = None

    def read(self, *, is_alive: bool) -> FolderFacts | None:
        """What the folder holds now; None before the run begins.

        Args:
            is_alive: whether a process trains the run.

        Raises:
            CheckpointError: a file of the folder is damaged.
        """
        if not (self.run_dir / "run.json").is_file():
            return None
        record: dict[str, Any] = mask_credentials_in(read_record(self.run_dir))
        self._read_events()
        rows = self._read_rows()
        if self._config is None:
            self._config = flat_texts(mask_credentials_in(read_values(self.run_dir)))
        return FolderFacts(
            record=record,
            config=self._config,
            steps=self._complete_steps(),
            epochs=tuple(_points_of_epochs(rows, milliseconds_of(record.get("start")))),
            rows=rows,
            is_alive=is_alive,
            model_sha256=self._digest(record),
        )

    def _read_rows(self) -> tuple[Mapping[str, Any], ...]:
        file = self.run_dir / "metrics.jsonl"
        if not file.exists():
            return ()
        status = file.stat()
        if self._rows_stamp != (status.st_mtime_ns, status.st_size):
            self._rows, self._rows_stamp = read_rows(file), (status.st_mtime_ns, status.st_size)
        return self._rows

    def _digest(self, record: Mapping[str, Any]) -> str | None:
        file = self.run_dir / "model" / "model.safetensors"
        if record["status"] != "completed" or not file.is_file():
            return None
        if self._digest_of_attempt is None or self._digest_of_attempt[0] != record["attempts"]:
            self._digest_of_attempt = record["attempts"], sha256_of(file)
        return self._digest_of_attempt[1]

    def _read_events(self) -> None:
        for file in sorted((self.run_dir / "tensorboard").glob("events.out.tfevents.*")):
            if file not in self._loaders:
                self._loaders[file] = EventFileLoader(str(file))
            for event in self._loaders[file].Load():
                for value in event.summary.value:
                    if value.tag in STEP_TAGS:
                        # The newest file counts: a resumed run trains some steps again.
                        self._steps.setdefault(event.step, {})[value.tag] = float(value.tensor.float_val[0])
                        self._moments[event.step] = int(event.wall_time * 1000)

    def _complete_steps(self) -> tuple[Point, ...]:
        # The last point may be in the file in part.
        return tuple(
            Point(step=step, milliseconds=self._moments[step], values=dict(values))
            for step, values in sorted(self._steps.items())
            if len(values) == len(STEP_TAGS)
        )


def _points_of_epochs(rows: tuple[Mapping[str, Any], ...], start: int) -> list[Point]:
    points, seconds = [], 0.0
    for row in rows:
        seconds += row.get("epoch_seconds", 0.0)
        values = {key: float(value) for key, value in row.items() if _is_number(value)}
        points.append(Point(step=row.get("step") or 0, milliseconds=start + int(seconds * 1000), values=values))
    return points


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def milliseconds_of(text: object) -> int:
    """A point in time of run.json in milliseconds since 1970; 0 where there is none."""
    moment = parse_moment(text)
    return 0 if moment is None else int(moment.timestamp() * 1000)


def flat_texts(values: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """Nested values as texts by their full key; what is no text as JSON, such as null."""
    flat: dict[str, str] = {}
    for key, value in values.items():
        if isinstance(value, Mapping) and value:
            flat |= flat_texts(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return flat
