"""From a checked config to running processes."""

from __future__ import annotations

from pathlib import Path

from runner.preflight import Ready
from runner.train import RunResult, train


def launch(ready: Ready, run_dir: Path, overrides: tuple[str, ...] = ()) -> RunResult:
    """Run a training in this process."""
    return train(ready.config, run_dir, ready.splits, overrides)
