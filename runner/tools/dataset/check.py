"""Decodes every image of a data set and writes check.json and quarantine.csv."""

from __future__ import annotations

import csv
import io
import os
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from runner.base.console import tracked
from runner.base.errors import OutputError
from runner.base.files import named_write_errors, write_atomic, write_json
from runner.base.stop import StopRequest
from runner.base.timeline import new_run_name
from runner.config.schema import Config
from runner.config.schema.data import DataConfig
from runner.data.images.statistics import ChannelStatistics
from runner.data.source import ImageSource
from runner.data.sources.classes import odd_names
from runner.data.sources.index import path_text
from runner.data.sources.paths import resolve_paths
from runner.data.splits import Splits, open_splits
from runner.tools.dataset.parallel import in_parallel, num_workers
from runner.tools.dataset.problems import (
    MAX_ASPECT_RATIO,
    DatasetProblems,
    ImageFacts,
    ImageInspector,
    ImageRef,
    SameContent,
    Table,
    build_table,
    counts_per_class,
    file_of,
    find_problems,
    name_of,
    reasons_to_quarantine,
)
from runner.tools.dataset.staging import full_path

# Of each kind of problem; check.json counts all of them, and quarantine.csv lists all of its images.
_MAX_LISTED = 10_000


@dataclass(frozen=True)
class Checked:
    """The result of a check."""

    report: dict[str, Any]
    """As written to check.json."""
    folder: Path
    num_findings: int


def check_dataset(config: Config, output: str | None, stop: StopRequest, *, wants_statistics: bool = False) -> Checked:
    """Decode all images of all splits, as training would.

    Args:
        config: of the experiment; used are `data`, `seed`, `output_dir`, and `data.workers` as the number of processes
            that decode (auto: one per core).
        output: folder for the two files; None makes a new one under output_dir.
        stop: ends the check.
        wants_statistics: also measure the training images after the transforms of evaluation, for data.normalize.

    Raises:
        RunnerError: the data set can't be opened at all.
        OutputError: one of the files exists already, or can't be written.
        StoppedOnRequest: a signal asked for it.
    """
    folder = full_path(output) if output else full_path(config.output_dir) / "checks" / new_run_name()
    for name in ("check.json", "quarantine.csv"):
        if os.path.lexists(folder / name):
            raise OutputError(f"{folder / name}: already exists and is never overwritten; choose another output")
    data = resolve_paths(config.data)
    splits = open_splits(data, config.seed)
    named = {"train": splits.train, "val": splits.val, "test": splits.test}
    sources = {name: source for name, source in named.items() if source is not None}
    began = time.perf_counter()
    measured = _effective(config, data) if wants_statistics else None
    results = in_parallel(ImageInspector(sources, measured), _tasks(sources, stop), num_workers(data.workers))
    total, statistics = sum(map(len, sources.values())), ChannelStatistics()
    table = build_table(sources, _added(tracked(results, label="checking", unit="image", total=total), statistics))
    seconds = time.perf_counter() - began
    findings = find_problems(table)
    quarantine = reasons_to_quarantine(table, findings)
    report = _report(data, splits, sources, table, findings) | {
        "num_quarantined": len(quarantine),
        "decoding_seconds": round(seconds, 3),
        "images_per_second": round(total / seconds, 1),
    }
    if statistics.num_images:
        report["statistics"] = statistics.to_json()
    stop.raise_if_received("nothing was written")
    with named_write_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
    write_atomic(folder / "quarantine.csv", _as_csv(data.root, sources, table, quarantine))
    write_json(folder / "check.json", report)
    return Checked(report, folder, sum(report["num_findings"].values()))


def _effective(config: Config, data: DataConfig) -> DataConfig:
    """The preprocessing that a training would have: that of pretrained weights, if any."""
    from runner.training.assemble import effective_data  # noqa: PLC0415 - builds models, which only statistics need

    return effective_data(config.model_copy(update={"data": data}))


def _added(
    results: Iterable[tuple[ImageRef, ImageFacts]], statistics: ChannelStatistics
) -> Iterator[tuple[ImageRef, ImageFacts]]:
    for task, facts in results:
        if facts.sums is not None:
            statistics.add(facts.sums)
        yield task, facts


def _tasks(sources: Mapping[str, ImageSource], stop: StopRequest) -> Iterator[ImageRef]:
    for split, source in sources.items():
        for image in range(len(source)):
            stop.raise_if_received("nothing was written")
            yield ImageRef(split, image)


def _report(
    data: DataConfig, splits: Splits, sources: Mapping[str, ImageSource], table: Table, findings: DatasetProblems
) -> dict[str, Any]:
    counts = counts_per_class(table, len(splits.classes))
    sides = {"width": table.widths[table.is_read], "height": table.heights[table.is_read]}
    present = [count for count in counts["train"] if count]
    suspicious = np.union1d(findings.tiny, findings.elongated)
    odd = odd_names(splits.classes)
    has_files = all(file_of(source, 0) is not None for source in sources.values())
    return {
        "command": "dataset check",
        "data": data.model_dump(mode="json", include={"source", "root", "train", "val", "test"}),
        "same_content_means": "the same bytes of the file" if has_files else "the same bytes or pixels",
        "num_images": {name: len(source) for name, source in sources.items()},
        "num_findings": {
            "unreadable": len(table.problems),
            "same_content_in_several_splits": len(findings.leaks),
            "same_content_with_several_labels": len(findings.contradictions),
            "same_content_within_a_split": len(findings.repeats),
            "suspicious_size": len(suspicious),
            "odd_class_names": len(odd),
        },
        "num_per_class": {
            label: {name: own[position] for name, own in counts.items()}
            for position, label in enumerate(splits.classes)
        },
        "train_imbalance": max(present) / min(present) if present else None,
        "size": {
            name: {"min": int(own.min()), "median": float(np.median(own)), "max": int(own.max())}
            for name, own in sides.items()
            if len(own)
        },
        "modes": dict(table.modes.most_common()),
        "num_rotated_by_exif": table.num_rotated,
        "unreadable": [
            _place(sources, table, image) | {"reason": reason}
            for image, reason in list(table.problems.items())[:_MAX_LISTED]
        ],
        "same_content_in_several_splits": _groups(sources, splits, table, findings.leaks),
        "same_content_with_several_labels": _groups(sources, splits, table, findings.contradictions),
        "same_content_within_a_split": _groups(sources, splits, table, findings.repeats),
        "suspicious_size": [
            _place(sources, table, image) | _oddity(table, findings, image)
            for image in suspicious.tolist()[:_MAX_LISTED]
        ],
        "odd_class_names": [{"names": list(found.names), "reason": found.reason} for found in odd[:_MAX_LISTED]],
        "notes": list(splits.notes),
    }


def _place(sources: Mapping[str, ImageSource], table: Table, number: int) -> dict[str, Any]:
    split, image = table.split_of(number)
    return {"split": split, "path": name_of(sources[split], image)}


def _groups(
    sources: Mapping[str, ImageSource], splits: Splits, table: Table, groups: tuple[SameContent, ...]
) -> list[list[dict[str, Any]]]:
    return [
        [
            _place(sources, table, image) | {"label": splits.classes[int(table.labels[image])]}
            for image in group.images[:_MAX_LISTED]
        ]
        for group in groups[:_MAX_LISTED]
    ]


def _oddity(table: Table, findings: DatasetProblems, image: int) -> dict[str, Any]:
    is_tiny = bool(np.isin(image, findings.tiny))
    reason = "far smaller than the others" if is_tiny else f"aspect ratio above {MAX_ASPECT_RATIO:g}"
    return {"width": int(table.widths[image]), "height": int(table.heights[image]), "reason": reason}


def _as_csv(root: str | None, sources: Mapping[str, ImageSource], table: Table, quarantine: Mapping[int, str]) -> bytes:
    """A list for data.exclude: paths relative to data.root where they lie within it, else full paths."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["path", "reason"])
    for number, reason in quarantine.items():
        split, image = table.split_of(number)
        path = file_of(sources[split], image) or sources[split].describe(image)
        writer.writerow([path.removeprefix(f"{root}/") if root else path, path_text(reason)])
    return text.getvalue().encode(errors="surrogateescape")
