"""A model folder of a Triton model repository around an ONNX file.

Its layout is that of Triton's user guide (Model Repository, Model Configuration): NAME/config.pbtxt, a file of labels,
and NAME/1/model.onnx. The configuration is a protobuf message ModelConfig in text format. Imports no torch.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from runner.base.errors import ConfigError, Problem
from runner.base.files import sync_file, sync_folder
from runner.base.untrusted import printable

if TYPE_CHECKING:
    from runner.tools.export.formats import Wrapped

MODEL_FILE = "1/model.onnx"
CONFIG_FILE = "config.pbtxt"
LABELS_FILE = "labels.txt"
_TYPES = {"float32": "TYPE_FP32", "uint8": "TYPE_UINT8"}
_MAX_BATCH_SIZE = 64
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")


def check_model_name(output: Path) -> None:
    """Check that Triton can take the name of a folder as that of a model.

    Raises:
        ConfigError: it has other characters than letters, digits, dots, dashes and underscores.
    """
    if not _NAME.fullmatch(output.name):
        message = "is a folder whose name is the model's: letters, digits, and . _ - within"
        raise ConfigError([Problem(key="output", value=str(output), has_value=True, message=message)])


def complete_model_folder(folder: Path, name: str, wrapped: Wrapped, classes: Sequence[str]) -> None:
    """Write configuration and labels beside :data:`MODEL_FILE`, which is there, and sync all to disk.

    Args:
        folder: of the model, under a temporary name.
        name: that it gets.
        wrapped: what was exported.
        classes: names in index order; a line of the labels each.
    """
    inputs, outputs = wrapped.input, wrapped.output
    dims = inputs["shape"][1:]
    text = f"""\
name: {_text(name)}
platform: "onnxruntime_onnx"
max_batch_size: {_MAX_BATCH_SIZE}
input [
  {{
    name: {_text(inputs["name"])}
    data_type: {_TYPES[inputs["dtype"]]}
    dims: {json.dumps(dims)}
  }}
]
output [
  {{
    name: {_text(outputs["name"])}
    data_type: {_TYPES[outputs["dtype"]]}
    dims: [{len(classes)}]
    label_filename: {_text(LABELS_FILE)}
  }}
]
dynamic_batching {{ }}
"""
    (folder / CONFIG_FILE).write_text(text, encoding="utf-8")
    # A name with a line break would move all labels that follow.
    (folder / LABELS_FILE).write_text("".join(f"{printable(label)}\n" for label in classes), encoding="utf-8")
    for file in (folder / CONFIG_FILE, folder / LABELS_FILE, folder / MODEL_FILE):
        sync_file(file)
    for place in ((folder / MODEL_FILE).parent, folder):
        sync_folder(place)


def _text(value: str) -> str:
    # The escapes of JSON for ASCII are those of protobuf's text format.
    return json.dumps(value, ensure_ascii=True)
