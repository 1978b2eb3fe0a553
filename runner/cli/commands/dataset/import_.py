"""`python -m runner dataset import input=PATH output=DIR`: import images into class folders."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from runner.base.console import show
from runner.base.errors import EXIT_DONE
from runner.base.stop import StopRequest
from runner.cli.call import read_own
from runner.config.schema.calls.of_datasets import DatasetImportCall
from runner.data.sources.index import name_list

_MAX_UNREADABLE = 5


def run(argv: list[str]) -> int:
    """Import a data set.

    Raises:
        ConfigError: what was typed is wrong.
        RunnerError: the input can't be imported, or the output not be written.
    """
    call = read_own("dataset import", DatasetImportCall, argv)
    from runner.tools.dataset.importing import import_images  # noqa: PLC0415 - not needed to report a mistake in the call

    with StopRequest() as stop:
        report = import_images(call, stop)
    show("\n".join(_lines(report)))
    return EXIT_DONE


def _lines(report: dict[str, Any]) -> list[str]:
    lines = [f"imported {report['num_images']:,} images into {report['output']}"]
    for split, counts in report["num_per_class"].items():
        name = "" if split == "all" else f"{split}: "
        classes = [f"{label} {count:,}" for label, count in counts.items()]
        lines.append(f"  {name}{sum(counts.values()):,} images of {len(counts)} classes: {name_list(classes)}")
    for item in report["unreadable"][:_MAX_UNREADABLE]:
        lines.append(f"unreadable: {item['path']}: {item['reason']}")
    if len(report["unreadable"]) > _MAX_UNREADABLE:
        lines.append(f"unreadable: {len(report['unreadable']):,} in all")
    lines += [
        f"left out: {item['count']:,} {reason} ({name_list(item['examples'])})"
        for reason, item in report["left_out"].items()
    ]
    if report["renamed_classes"]:
        lines.append(f"classes renamed because their names can't be folder names: {report['renamed_classes']}")
    if report["num_renamed_files"]:
        lines.append(
            f"files renamed because their names existed already or were invalid: {report['num_renamed_files']:,}"
        )
    lines += [f"note: {note}" for note in report["notes"]]
    if report["sha256"] is not None and report["options"]["sha256"] is None:
        lines.append(f"downloaded from {report['input']}; to require the same file: sha256={report['sha256']}")
    key = "data.root" if "train" in report["num_per_class"] else "data.train"
    command = f"python -m runner data=folder {key}={Path(report['output'])}"
    return [*lines, f"report: {report['output']}.import.json", f"train on it: {command}"]
