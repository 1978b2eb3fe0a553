"""Exports a trained model to a format that other programs run, and compares it with PyTorch before it is kept.

Importing this package imports no torch.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

Format = Literal["onnx", "torch_export", "torchscript"]
# Usual file name suffixes.
SUFFIXES: dict[Format, str] = {"onnx": "onnx", "torch_export": "pt2", "torchscript": "pt"}


def description_of(output: Path) -> Path:
    """The JSON beside an exported file."""
    return output.with_name(f"{output.name}.json")
