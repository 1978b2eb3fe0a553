"""The reference reads descriptions as pydantic does, and the values in conf/ as Hydra does."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from omegaconf import OmegaConf
from pydantic import BaseModel, ConfigDict

from runner.config import CONF_DIR, group_options
from runner.config.reference.keys import DescribedSchema, descriptions, read_file
from runner.config.schema import Config


class _Inner(BaseModel):
    model_config = ConfigDict(use_attribute_docstrings=True)

    size: int
    """How large,
    in pixels."""
    bare: int


class _Outer(_Inner):
    inner: _Inner
    """One inside."""
    size: int
    """Another size."""


@pytest.mark.parametrize("section", [_Inner, _Outer])
def test_finds_what_pydantic_finds(section: type[BaseModel]) -> None:
    found = {name: field.description for name, field in section.model_fields.items() if field.description}
    assert descriptions(section) == found
    assert section.model_json_schema(schema_generator=DescribedSchema) == section.model_json_schema()


def test_the_schema_is_described_without_pydantic() -> None:
    assert Config.model_fields["seed"].description is None
    schema = Config.model_json_schema(schema_generator=DescribedSchema)
    assert schema["properties"]["seed"]["description"].startswith("Seed of the weights")


ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("file", sorted(CONF_DIR.rglob("*.yaml")), ids=lambda file: str(file.relative_to(CONF_DIR)))
def test_a_file_is_read_as_hydra_reads_it(file: Path) -> None:
    assert read_file(file) == OmegaConf.to_container(OmegaConf.load(file), resolve=False)


def test_numbers_are_read_as_hydra_reads_them(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("rate: 1e-3\nday: 2026-01-02\nother: ${rate}\n")
    assert read_file(tmp_path / "a.yaml") == {"rate": 1e-3, "day": "2026-01-02", "other": "${rate}"}


def test_options_of_own_folders_come_along(tmp_path: Path) -> None:
    (tmp_path / "optimizer").mkdir()
    for name in ("mine.yaml", "_base.yaml"):
        (tmp_path / "optimizer" / name).touch()
    assert group_options("optimizer", [str(tmp_path)]) == sorted([*group_options("optimizer"), "mine"])


def test_the_reference_needs_no_hydra() -> None:
    code = "import runner.config.reference, sys; print('hydra' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False"]
