"""`python -m runner dataset split input=DIR|LIST.csv output=DIR`: divide images into splits."""

from __future__ import annotations

import shlex
from typing import Any

from runner.base.console import show
from runner.base.errors import EXIT_DONE
from runner.base.stop import StopRequest
from runner.cli.call import read_own
from runner.config.schema.calls.of_datasets import DatasetSplitCall
from runner.data.sources.index import name_list

_MAX_CLASSES = 20


def run(argv: list[str]) -> int:
    """Split a data set.

    Raises:
        ConfigError: what was typed is wrong.
        RunnerError: the input can't be split, or the output not be written.
    """
    call = read_own("dataset split", DatasetSplitCall, argv)
    from runner.tools.dataset.split import split_images  # noqa: PLC0415 - not needed to report a mistake in the call

    with StopRequest() as stop:
        record = split_images(call, stop)
    show("\n".join(_lines(record)))
    return EXIT_DONE


def _lines(record: dict[str, Any]) -> list[str]:
    counts = ", ".join(f"{name} {count:,}" for name, count in record["num_images"].items())
    lines = [f"split {sum(record['num_images'].values()):,} images, {record['rule']}, seed {record['seed']}: {counts}"]
    for label, own in list(record["num_per_class"].items())[:_MAX_CLASSES]:
        lines.append(f"  {label}: " + ", ".join(f"{name} {count:,}" for name, count in own.items()))
    if len(record["num_per_class"]) > _MAX_CLASSES:
        lines.append(f"  … {len(record['num_per_class']):,} classes in all, see split.json")
    if record["classes_of_one_image"]:
        lines.append(f"classes with a single image, which is in train: {name_list(record['classes_of_one_image'])}")
    for name in ("train", "val", "test"):
        missing = [label for label, own in record["num_per_class"].items() if own.get(name) == 0]
        if missing:
            lines.append(f"note: {name} has no image of {len(missing)} classes: {name_list(missing)}")
    lines += [f"note: {note}" for note in record["notes"]]
    return [*lines, f"record: {record['output']}/split.json", f"train on it: {_training_command(record)}"]


def _training_command(record: dict[str, Any]) -> str:
    """The command that trains on a split."""
    output = record["output"]
    if record["mode"] != "manifest":
        words = ["data=folder", f"data.root={output}"]
    else:
        lists = [f"data.{name}={output}/{name}.csv" for name in record["num_images"]]
        words = ["data=csv", f"data.root={record['root']}", *lists]
    return f"python -m runner {shlex.join(words)}"
