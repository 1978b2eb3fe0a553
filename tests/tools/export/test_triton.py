from __future__ import annotations

import re
from types import SimpleNamespace

import pytest

from runner.base.errors import ConfigError
from runner.tools.export.triton import check_model_name, complete_model_folder

RAW = {"name": "images", "dtype": "float32", "shape": ["batch", 3, 32, 48]}
PIXELS = {"name": "images", "dtype": "uint8", "shape": ["batch", 32, 48, 3]}


def written(folder, inputs, classes=("a", "b")):
    (folder / "1").mkdir()
    (folder / "1" / "model.onnx").write_bytes(b"onnx")
    output = {"name": "logits", "dtype": "float32", "shape": ["batch", "classes"]}
    complete_model_folder(folder, "birds-2", SimpleNamespace(input=inputs, output=output), classes)
    text = (folder / "config.pbtxt").read_text()
    tensors = [dict(re.findall(r"(\w+): (.+)", block)) for block in re.findall(r"\{([^{}]+)\}", text) if ":" in block]
    return text, tensors


@pytest.mark.parametrize(
    ("inputs", "kind", "dims"), [(RAW, "TYPE_FP32", "[3, 32, 48]"), (PIXELS, "TYPE_UINT8", "[32, 48, 3]")]
)
def test_the_configuration_names_what_the_model_takes_and_gives(tmp_path, inputs, kind, dims):
    text, (taken, given) = written(tmp_path, inputs)
    assert text.startswith('name: "birds-2"\nplatform: "onnxruntime_onnx"\nmax_batch_size: 64\n')
    assert text.endswith("dynamic_batching { }\n")
    # Without the dimension of the batch, which max_batch_size implies.
    assert taken == {"name": '"images"', "data_type": kind, "dims": dims}
    assert given == {"name": '"logits"', "data_type": "TYPE_FP32", "dims": "[2]", "label_filename": '"labels.txt"'}


def test_each_class_is_one_line(tmp_path):
    written(tmp_path, RAW, ("two\nlines", "grün"))
    lines = (tmp_path / "labels.txt").read_text(encoding="utf-8").splitlines()
    assert len(lines) == 2 and lines[1] == "grün"


@pytest.mark.parametrize("name", ["two words", "ä", "-x"])
def test_a_name_that_triton_may_not_take_is_refused(tmp_path, name):
    with pytest.raises(ConfigError, match="whose name is the model's"):
        check_model_name(tmp_path / name)
