"""Rewrites docs/config.md and docs/config.schema.json under the current folder."""

from __future__ import annotations

from pathlib import Path

from runner.config.reference import config_page, experiment_schema
from runner.config.reference.editor import as_text


def write_reference() -> None:
    """Write both files; makes the folder docs/ where it is missing."""
    docs = Path("docs")
    docs.mkdir(exist_ok=True)
    (docs / "config.md").write_text(config_page(), encoding="utf-8")
    (docs / "config.schema.json").write_text(as_text(experiment_schema()), encoding="utf-8")


if __name__ == "__main__":
    write_reference()
