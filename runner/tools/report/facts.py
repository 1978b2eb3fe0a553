"""The texts and numbers of a run's report."""

from __future__ import annotations

import json
import re
import shlex
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from runner.base.errors import CheckpointError
from runner.base.untrusted import UntrustedFileError, read_tail, unreadable
from runner.run.run_folder import summary_of_experiment
from runner.tools.runs.past import (
    PastRun,
    data_of,
    describe_metric,
    describe_names,
    describe_seconds,
    elapsed_seconds,
    has_top5,
)

_WARNING = re.compile(r"^\S+ \S+ WARNING (.*)$")
_MOST_WARNINGS = 50
_COUNTS = {
    "num_train": "training images",
    "num_val": "validation images",
    "num_test": "test images",
    "num_classes": "classes",
}
_METRIC_NAMES = {"val_top1": "top-1 accuracy", "val_top5": "top-5 accuracy", "val_loss": "validation loss"}


@dataclass(frozen=True, kw_only=True)
class Summary:
    """The head of a report."""

    title: str
    name: str
    """The last two parts of its folder."""
    names: str
    """What `run.name`, `run.group` and `run.tags` say."""
    notes: str | None
    status: str
    lead: tuple[str, ...]
    """Sentences: what, on what, how well, how fast."""
    tiles: tuple[tuple[str, str, str], ...]
    """Label, value and explanation."""
    commands: tuple[tuple[str, str], ...]
    """Purpose and command."""
    error: str | None


@dataclass(frozen=True, kw_only=True)
class Part:
    """A part of the time."""

    name: str
    seconds: float
    share: float
    """Of all parts, in [0, 1]."""


def summary(run: PastRun) -> Summary:
    """The head of the report, from what the run has recorded so far."""
    experiment = summary_of_experiment(run.config.get("model", {}), run.config.get("data", {}))
    data = experiment["data"] if experiment["data_root"] is None else Path(experiment["data_root"]).name
    error = run.record.get("error")
    return Summary(
        title=f"{experiment['model']} on {data}",
        name="/".join(run.path.parts[-2:]),
        names=describe_names(run.record),
        notes=run.record.get("notes"),
        status=run.status,
        lead=tuple(_lead(run, experiment)),
        tiles=tuple(_tiles(run)),
        commands=tuple(_commands(run)),
        error=f"{error.get('name')}: {error.get('message')}" if error else None,
    )


def _lead(run: PastRun, experiment: Mapping[str, Any]) -> Iterator[str]:
    weights = run.config.get("model", {}).get("weights")
    start = f"from the weights {weights}" if weights else "from random weights"
    facts = data_of(run)
    counts = [f"{facts[key]:,} {words}" for key, words in _COUNTS.items() if facts.get(key)]
    images = f": {', '.join(counts)}" if counts else ""
    place = experiment["data_root"] or experiment["data"]
    yield f"{experiment['model']}, trained {start} on {place}{images}."
    best = run.record.get("best")
    if best is None:
        yield "No epoch has been finished, so nothing is known of its quality."
    else:
        kind = " of the averaged weights" if best.get("weights") == "ema" else ""
        value = describe_metric(best["metric"], best["value"])
        metric = _METRIC_NAMES.get(best["metric"], best["metric"])
        yield f"Best {metric}{kind}: {value}, after epoch {best['epoch']} of {len(run.rows)}."
    elapsed = elapsed_seconds(run.path, run.record)
    if elapsed is not None and run.rows:
        world_size = run.record.get("world_size", 1)
        processes = f"{world_size} process{'es' if world_size != 1 else ''}"
        yield f"It took {describe_seconds(elapsed)} on {run.record.get('device')}, with {processes}."


def _tiles(run: PastRun) -> Iterator[tuple[str, str, str]]:
    found, best = run.evaluation, run.record.get("best")
    best_row = next((row for row in run.rows if best is not None and row["epoch"] == best["epoch"]), None)
    if found is not None:
        skipped = f", {found['num_skipped']:,} skipped" if found.get("num_skipped") else ""
        images = f"{found['correct']:,} of {found['count']:,} validation images{skipped}"
        yield "Top-1", f"{found['top1']:.2%}", images
        if has_top5(run):
            yield "Top-5", f"{found['top5']:.2%}", "label among the first five guesses"
        yield "Loss", f"{found['loss']:.4f}", "mean cross-entropy, validation"
        if "expected_calibration_error" in found:
            yield "Calibration error", f"{found['expected_calibration_error']:.2%}", "probability against accuracy"
    elif best is not None and best_row is not None:
        prefix = "val_ema" if best.get("weights") == "ema" else "val"
        for label, name, form in (("Top-1", "top1", ".2%"), ("Top-5", "top5", ".2%"), ("Loss", "loss", ".4f")):
            value = best_row.get(f"{prefix}_{name}")
            if value is not None and (name != "top5" or has_top5(run)):
                yield label, format(value, form), "validation, best epoch"
    test = run.record.get("test")
    if test:
        yield "Test top-1", f"{test['top1']:.2%}", f"{test['count']:,} images, not used to choose anything"
    planned = run.config.get("trainer", {}).get("epochs")
    yield "Epochs", f"{len(run.rows)}", f"of {planned} planned"
    if rates := sorted(row["train_images_per_second"] for row in run.rows if "train_images_per_second" in row):
        yield "Speed", f"{rates[len(rates) // 2]:,.0f}/s", "training images, median epoch"


def _commands(run: PastRun) -> Iterator[tuple[str, str]]:
    folder = shlex.quote(str(run.path))
    yield "How it was started", str(run.record.get("command"))
    yield "Train it again in a new folder", f"python -m runner runs repeat run={folder}"
    if run.status in ("stopped", "failed", "died"):
        yield "Resume it", f"python -m runner resume run={folder}"
    if run.evaluation is None and run.record.get("best"):
        yield "Evaluate it in detail", f"python -m runner evaluate run={folder}"
    if (run.path / "model").is_dir():
        yield "Use it from Python", f"model = runner.load_model({str(run.path)!r})"
        yield "Score images", f"python -m runner predict run={folder} input=FOLDER output=scores.csv"
        yield "Use it elsewhere", f"python -m runner export run={folder} format=onnx"


def time_split(run: PastRun) -> tuple[Part, ...]:
    """Where the time of the finished epochs went, without the checkpoint of the last epoch, which comes later."""
    rows = run.rows
    names = ("data_wait", "train", "evaluation", "checkpoint", "epoch")
    if not rows or not all(f"{name}_seconds" in row for row in rows for name in names):
        return ()
    wait, train, evaluation, checkpoint, total = (sum(row[f"{name}_seconds"] for row in rows) for name in names)
    if total == 0:
        return ()
    seconds = {
        "Training steps": max(0.0, train - wait),
        "Waiting for data": wait,
        "Evaluation": evaluation,
        "Waiting for checkpoints": checkpoint,
    }
    seconds["Everything else"] = max(0.0, total - sum(seconds.values()))
    return tuple(Part(name=name, seconds=value, share=value / total) for name, value in seconds.items())


def warnings_of(run: PastRun) -> tuple[tuple[str, int], ...]:
    """The warnings of run.json, then those of the log with their counts, at most the last 50."""
    recorded = tuple((str(sentence), 1) for sentence in run.record.get("warnings") or ())
    return (*recorded, *_warnings_in(run.path / "logs" / "rank_0.log"))


def _warnings_in(log: Path) -> tuple[tuple[str, int], ...]:
    try:
        text = read_tail(log).decode("utf-8", errors="replace")
    except (FileNotFoundError, NotADirectoryError):
        return ()
    except (OSError, UntrustedFileError) as error:
        raise CheckpointError(unreadable(log, error)) from error
    counts = Counter(match[1] for line in text.split("\n") if (match := _WARNING.match(line)))
    return tuple(counts.items())[-_MOST_WARNINGS:]


def environment(run: PastRun) -> dict[str, str]:
    """Code, machine and versions."""
    record = run.record
    git = record.get("git") or {}
    changed = "unknown" if git.get("dirty") is None else ("yes" if git["dirty"] else "no")
    if (run.path / "source.patch").is_file():
        changed = "yes: source.patch in the run folder"
    facts: dict[str, Any] = {
        "run folder": run.path,
        "git commit": git.get("commit") or "none: not in a git repository",
        "uncommitted changes": changed,
        "started": record.get("start"),
        "ended": record.get("end") or "not yet",
        "attempts": record.get("attempts"),
        "host": record.get("host"),
        "device": record.get("device"),
        "processes": record.get("world_size"),
        "launched": record.get("launcher"),
        "data fingerprint": data_of(run).get("fingerprint"),
    }
    facts |= {f"{name} version": version for name, version in (record.get("versions") or {}).items()}
    facts |= {
        key.replace("_", " "): value for key, value in (run.state.get("numerics") or {}).items() if key == "precision"
    }
    return {name: str(value) for name, value in facts.items() if value is not None}


def flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """A config as full keys with their values as text."""
    rows: dict[str, str] = {}
    for key, value in values.items():
        if isinstance(value, Mapping):
            rows |= flat(value, f"{prefix}{key}.")
        elif isinstance(value, list) and any(isinstance(entry, Mapping) for entry in value):
            rows[f"{prefix}{key}"] = ", ".join(_entry(entry) for entry in value)
        else:
            # As YAML has it: null and true, but text without quotes.
            rows[f"{prefix}{key}"] = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return rows


def _entry(entry: Any) -> str:  # noqa: ANN401 - plain values
    if not isinstance(entry, Mapping):
        return str(entry)
    rest = ", ".join(f"{key}={value}" for key, value in entry.items() if key != "name")
    return f"{entry.get('name')}({rest})"
