"""Sweeps as they lie on disk, without training anything."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from runner.library import load_config
from runner.tools.sweep.sweep_folder import SweepFolder, Trial


@pytest.fixture(scope="session")
def base_config() -> dict[str, Any]:
    return load_config(["data=synthetic"]).model_dump(mode="json")


@pytest.fixture
def folder(tmp_path: Path) -> SweepFolder:
    sweep = SweepFolder(tmp_path / "sweep")
    sweep.path.mkdir()
    facts = {"start": "2026-11-20T12:00:00+00:00", "argv": ["-m"], "cwd": str(tmp_path)}
    sweep.begin({**facts, "metrics": ["val_top1"], "directions": ["maximize"]})
    return sweep


@pytest.fixture
def add_trial(folder: SweepFolder, base_config: dict[str, Any]) -> Callable[..., Trial]:
    """Adds a trial with these values per epoch; status None: it has not begun."""

    def add(
        values: dict[str, str], epochs: Sequence[float] = (), status: str | None = "completed", **facts: Any
    ) -> Trial:
        number = len(folder.trials())
        trial = Trial(
            number=number,
            identity=f"{number:064x}",
            values=values,
            overrides=[f"{key}={value}" for key, value in values.items()],
            config=base_config,
            **facts,
        )
        folder.save(trial)
        write_run(folder.run_dir(trial), epochs, status)
        return trial

    return add


def write_run(run_dir: Path, epochs: Sequence[float], status: str | None) -> None:
    run_dir.mkdir(exist_ok=True)
    rows = [
        {
            "epoch": epoch,
            "val_top1": value,
            "val_loss": 1 - value,
            "train_images_per_second": 10.0,
            "epoch_seconds": 2.0,
        }
        for epoch, value in enumerate(epochs, 1)
    ]
    (run_dir / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    if status is not None:
        error = {"name": "DeviceError", "message": "out of memory", "rank": 0} if status == "failed" else None
        (run_dir / "run.json").write_text(json.dumps({"status": status, "attempts": 1, "error": error}))
