"""A small share of the digits, for benchmarks that start many trainings."""

from __future__ import annotations

import os
from pathlib import Path

from runner.data.sources.digits import ensure_digits
from runner.data.sources.paths import resolve_paths
from runner.library import load_config


def use_few_digits(cache: Path, *, train_per_class: int, val_per_class: int) -> None:
    """Let data=digits be the first scans of each class, in this process and in all that it starts.

    Args:
        cache: a new folder, which takes the place of the cache folder.
        train_per_class: training scans of each of the ten classes that stay.
        val_per_class: validation scans of each that stay.
    """
    os.environ["RUNNER_CACHE"] = str(cache)
    root = resolve_paths(load_config(["data=digits"]).data).root
    assert root is not None
    ensure_digits(root)
    for split, kept in (("train", train_per_class), ("val", val_per_class)):
        for folder in Path(root, split).iterdir():
            for file in sorted(folder.iterdir())[kept:]:
                file.unlink()
