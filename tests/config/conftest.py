from __future__ import annotations

import pytest


@pytest.fixture
def experiment(tmp_path):
    """Writes an experiment and gives the arguments that choose it."""

    def write(text: str) -> tuple[str, ...]:
        folder = tmp_path / "my" / "experiment"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "mine.yaml").write_text(
            "# @package _global_\n" + text.format(made=tmp_path / "made"), encoding="utf-8"
        )
        return "--config-dir", str(tmp_path / "my"), "experiment=mine"

    return write
