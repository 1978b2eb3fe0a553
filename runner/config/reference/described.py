"""Descriptions of the keys: the docstrings that stand under the fields of the schema, read where they are shown."""

from __future__ import annotations

import ast
import functools
import inspect
import itertools
from collections.abc import Mapping
from types import ModuleType
from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import GenerateJsonSchema


class DescribedSchema(GenerateJsonSchema):
    """Pydantic's JSON schema with the docstrings of fields as their descriptions.

    Pydantic would read them too (`use_attribute_docstrings`), but whenever a class is made: at every start.
    """

    def model_schema(self, schema: Any) -> dict[str, Any]:  # noqa: ANN401 - a core schema
        """The schema of one class."""
        node = super().model_schema(schema)
        for name, text in descriptions(schema["cls"]).items():
            if name in node["properties"]:
                node["properties"][name]["description"] = text
        return node


def descriptions(section: type[BaseModel]) -> dict[str, str]:
    """The docstrings under the fields of a class, its own before those that it inherits."""
    found: dict[str, str] = {}
    for owner in reversed(section.__mro__):
        module = inspect.getmodule(owner)
        if module is not None and issubclass(owner, BaseModel) and owner is not BaseModel:
            found |= _docstrings(module).get(owner.__name__, {})
    return found


@functools.cache
def _docstrings(module: ModuleType) -> Mapping[str, Mapping[str, str]]:
    """The strings that stand right under annotated names, by class and name."""
    return {
        node.name: {
            field.target.id: inspect.cleandoc(below.value.value)
            for field, below in itertools.pairwise(node.body)
            if isinstance(field, ast.AnnAssign)
            and isinstance(field.target, ast.Name)
            and isinstance(below, ast.Expr)
            and isinstance(below.value, ast.Constant)
            and isinstance(below.value.value, str)
        }
        for node in ast.parse(inspect.getsource(module)).body
        if isinstance(node, ast.ClassDef)
    }
