"""From a checked config to running processes."""

from __future__ import annotations

from pathlib import Path

from runner.preflight import Ready
from runner.train import Resumption, RunResult, train


def launch(
    ready: Ready, run_dir: Path, overrides: tuple[str, ...] = (), resumption: Resumption | None = None
) -> RunResult:
    """Run a training in this process, from the start or from where it was."""
    return train(ready.config, run_dir, ready.splits, overrides, resumption)
