"""Exports a trained model to a format that other programs run, and compares it with PyTorch before it is kept.

Importing this package imports no torch.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

Format = Literal["onnx", "torch_export", "torchscript", "triton"]
# What the default output is called; a model folder of Triton has the name of the model.
NAMES: dict[Format, str] = {
    "onnx": "model.onnx",
    "torch_export": "model.pt2",
    "torchscript": "model.pt",
    "triton": "model",
}


def description_of(output: Path) -> Path:
    """The JSON beside what was exported."""
    return output.with_name(f"{output.name}.json")
