"""A trained model in a format that other programs run, checked against PyTorch before it is kept.

Importing this package imports no torch.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

Format = Literal["onnx", "torch_export", "torchscript"]
# How files of a format usually end.
SUFFIXES: dict[Format, str] = {"onnx": "onnx", "torch_export": "pt2", "torchscript": "pt"}


def description_of(output: Path) -> Path:
    """The JSON beside an exported file."""
    return output.with_name(f"{output.name}.json")
