"""Descriptions are those that pydantic finds, read only where they are shown."""

from __future__ import annotations

import pytest
from pydantic import BaseModel, ConfigDict

from runner.config.reference.described import DescribedSchema, descriptions
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
