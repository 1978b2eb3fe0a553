"""Reads and compares run folders. What an older or unfinished run lacks is None or empty. Imports no torch."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from runner.base.errors import CheckpointError
from runner.base.timeline import parse_moment
from runner.base.untrusted import UntrustedFileError, read_bytes, unreadable
from runner.base.user_paths import refuse_outside_links
from runner.config.saved import read_values
from runner.config.schema.checks.effects import changes
from runner.config.schema.trainer import can_miss_top5
from runner.run.contents import Metrics, StateSummary, read_object, read_pointer, read_rows
from runner.run.run_folder import is_alive, read_record

# The statuses of run.json, and: `died`: it says running, but no process is left; `damaged`: it can't be read;
# `queued`: the run waits for SLURM and has no run.json yet.
PastStatus = Literal["running", "completed", "stopped", "failed", "pruned", "died", "damaged", "queued"]


@dataclass(frozen=True, kw_only=True)
class PastRun:
    """The content of a run folder."""

    path: Path
    record: dict[str, Any]
    """run.json."""
    config: dict[str, Any]
    """config.yaml, as plain values."""
    rows: tuple[dict[str, Any], ...]
    """metrics.jsonl: one object per finished epoch."""
    evaluation: dict[str, Any] | None
    """evaluation/metrics.json; None where the run was not evaluated in detail."""
    state: dict[str, Any]
    """state.json of the newest checkpoint; empty before the first."""

    @property
    def status(self) -> PastStatus:
        """The status now; see :func:`status_of`."""
        return status_of(self.path, self.record)


def read_run(run_dir: Path) -> PastRun:
    """Read a run folder.

    Raises:
        CheckpointError: the folder is no run folder, or a file of it is damaged.
    """
    refuse_outside_links(run_dir)
    return PastRun(
        path=run_dir,
        record=read_record(run_dir),
        config=read_values(run_dir),
        rows=read_rows(run_dir / "metrics.jsonl"),
        evaluation=_evaluation(run_dir / "evaluation" / "metrics.json"),
        state=_newest_state(run_dir / "checkpoints"),
    )


def status_of(run_dir: Path, record: dict[str, Any]) -> PastStatus:
    """The status of run.json, or `died` where it says running and no process is left."""
    status: PastStatus = record["status"]
    return "died" if status == "running" and not is_alive(run_dir) else status


def read_small(file: Path) -> bytes | None:
    """A file of a run folder, such as source.patch; None where there is none.

    Raises:
        CheckpointError: it can't be read.
    """
    try:
        return read_bytes(file)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, UntrustedFileError) as error:
        raise CheckpointError(unreadable(file, error)) from error


def elapsed_seconds(run_dir: Path, record: dict[str, Any]) -> float | None:
    """Seconds from the first start to the end; until now of a running run, until the last record of one that died."""
    start = parse_moment(record.get("start"))
    if start is None:
        return None
    end = parse_moment(record.get("end"))
    if end is None and status_of(run_dir, record) == "died":
        files = [run_dir / "run.json", run_dir / "logs" / "rank_0.log"]
        end = datetime.fromtimestamp(max(file.stat().st_mtime for file in files if file.exists()), UTC)
    return max(0.0, ((end or datetime.now(UTC)) - start).total_seconds())


def describe_seconds(seconds: float) -> str:
    """A duration for people: 12 s, 3 min 05 s, 2 h 07 min, 3 d 04 h."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    if whole < 86400:
        return f"{whole // 3600} h {whole % 3600 // 60:02d} min"
    return f"{whole // 86400} d {whole % 86400 // 3600:02d} h"


def describe_metric(metric: str, value: float) -> str:
    """A metric for people: shares in percent, losses as they are."""
    return f"{value:.4f}" if metric.endswith("loss") else f"{value:.2%}"


def describe_names(record: dict[str, Any]) -> str:
    """How a run is named, in one line: its name, group and tags; empty where it has none."""
    group, tags = record.get("group"), record.get("tags") or {}
    parts = (record.get("name"), group and f"group {group}", ", ".join(f"{tag}={value}" for tag, value in tags.items()))
    return " · ".join(part for part in parts if part)


def _newest_state(checkpoints: Path) -> dict[str, Any]:
    name = read_pointer(checkpoints / "last")
    try:
        return {} if name is None else read_object(checkpoints / name / "state.json", StateSummary)
    except FileNotFoundError:
        return {}


def _evaluation(file: Path) -> dict[str, Any] | None:
    try:
        return read_object(file, Metrics)
    except FileNotFoundError:
        return None


# By dotted key: the value of the first run and that of the second; None where one has none.
Differences = dict[str, tuple[Any, Any]]
_SHOWN_DIGITS = 12


def compare_runs(first: PastRun, second: PastRun) -> dict[str, Differences]:
    """Per section (config, code, data, environment, metrics) what differs; sections without differences are left out.

    Times, speeds and the paths of the runs are not compared.
    """
    sections = {
        "config": changes(first.config, second.config),
        "code": changes(_code(first), _code(second)),
        # What only one of them has recorded, such as counts in newer runs, is no difference.
        "data": (pair for pair in changes(data_of(first), data_of(second)) if None not in pair),
        "environment": changes(_environment(first), _environment(second)),
        "metrics": changes(_metrics(first), _metrics(second)),
    }
    found = {name: {key: (old, new) for key, old, new in pairs} for name, pairs in sections.items()}
    return {name: section for name, section in found.items() if section}


def data_of(run: PastRun) -> dict[str, Any]:
    """What identifies the data set of a run: fingerprint and counts of images, as far as the run has recorded them."""
    facts = dict(run.record.get("data") or {})
    # run.json of older versions has the facts of the first attempt; resume.allow=[data] may have changed the data.
    return facts | {"fingerprint": run.state.get("data_fingerprint") or facts.get("fingerprint")}


def has_top5(run: PastRun) -> bool:
    """Whether there are more than 5 classes, without which top-5 is always 1; True where the number is unknown."""
    num_classes = data_of(run).get("num_classes")
    return can_miss_top5(num_classes)


def _code(run: PastRun) -> dict[str, Any]:
    git = run.record.get("git") or {}
    content, patch = read_small(run.path / "source.patch"), None
    if content is not None:
        files = content.count(b"\ndiff --git ") + content.startswith(b"diff --git ")
        digest = hashlib.sha256(content).hexdigest()[:_SHOWN_DIGITS]
        patch = f"{files} changed file{'' if files == 1 else 's'}, SHA-256 {digest}"
    return {
        "commit": git.get("commit"),
        "dirty": git.get("dirty"),
        "source.patch": patch,
    }


def _environment(run: PastRun) -> dict[str, Any]:
    record = run.record
    numerics = {
        key: value for key, value in (run.state.get("numerics") or {}).items() if key not in ("torch", "device")
    }
    return {
        **{key: record.get(key) for key in ("host", "device", "launcher", "world_size")},
        # Of torch with the build, such as +cu132, which the package metadata lacks.
        "packages": {**dict(_packages(run.path / "environment.txt")), **(record.get("versions") or {})},
        "numerics": numerics,
    }


def _packages(file: Path) -> Iterator[tuple[str, str]]:
    content = read_small(file) or b""
    for line in content.decode("utf-8", errors="replace").splitlines():
        name, _, version = line.partition("==")
        yield name, version


def _metrics(run: PastRun) -> dict[str, Any]:
    last = run.rows[-1] if run.rows else {}
    scores = ("count", "top1", "top5", "loss", "expected_calibration_error")
    return {
        "status": run.status,
        "best": run.record.get("best"),
        # The other values of a row depend on the clock.
        "last epoch": {key: value for key, value in last.items() if "second" not in key},
        **{
            name: {key: found[key] for key in scores if key in found} if found else None
            for name, found in (("evaluation", run.evaluation), ("test", run.record.get("test")))
        },
    }
