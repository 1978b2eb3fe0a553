"""A registry with small versions, without training anything."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from runner.tools.registry.folder_registry import FolderRegistry
from runner.tools.registry.versions import Draft

FACTS: dict[str, Any] = {
    "lineage": {
        "run": "/outputs/2026-11-20/18-47-13-044563",
        "name": "baseline",
        "group": None,
        "tags": {"set": "v2"},
        "start": "2026-11-20T18:47:13+00:00",
        "end": "2026-11-20T18:50:00+00:00",
        "git_commit": "a" * 40,
        "git_dirty": True,
        "data": "photos",
        "data_fingerprint": "f" * 64,
    },
    "architecture": "resnet18",
    "num_classes": 2,
    "best": {"metric": "val_top1", "value": 0.75, "epoch": 3},
    "metrics": {"val": {"count": 1200, "top1": 0.75, "top5": 1.0, "loss": 0.5}},
}


def small_draft(weights: bytes = b"weights") -> Draft:
    """The files of a version, of a few bytes, which only the registry itself can read."""

    def write(folder: Path) -> None:
        (folder / "model").mkdir()
        (folder / "model" / "model.safetensors").write_bytes(weights)
        (folder / "model" / "model.json").write_bytes(b"{}")
        (folder / "index.html").write_bytes(b"<p>")

    return Draft(write=write, facts=FACTS, card=lambda record: f"# {record.name}, version {record.version}\n")


@pytest.fixture
def registry(tmp_path: Path) -> FolderRegistry:
    return FolderRegistry(tmp_path / "models")
