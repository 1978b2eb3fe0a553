"""A model in a worker, without its process: other ways to compute, and images that nobody should send."""

from __future__ import annotations

import io
import re
import shutil
import struct
import sys
import zlib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from runner.base.errors import ConfigError, InvalidModelError
from runner.cli.call import read_own
from runner.config.schema.calls.of_serving import ServeCall
from runner.tools.serve.served_model import ServedModel
from tests.made_package import make_package


def model_of(folder: Path, *rules: str) -> ServedModel:
    call = read_own("serve", ServeCall, [f"model={folder}", "serve.max_batch_size=4", *rules])
    return ServedModel(folder, call.serve, number=0)


def encoded(width: int = 48, height: int = 36, kind: str = "PNG", mode: str = "RGB") -> bytes:
    file = io.BytesIO()
    pixels = np.random.default_rng(0).integers(0, 256, (height, width, 3), dtype=np.uint8)
    Image.fromarray(pixels).convert(mode).save(file, kind)
    return file.getvalue()


def png_that_claims(width: int, height: int) -> bytes:
    def chunk(name: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))

    head = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 1, 0, 0, 0, 0))
    rows = zlib.compress(bytes((width // 8 + 1) * min(height, 5000)), 9)
    return b"\x89PNG\r\n\x1a\n" + head + chunk(b"IDAT", rows) + chunk(b"IEND", b"")


@pytest.fixture(scope="module")
def model(trained) -> ServedModel:
    return model_of(trained / "model", "serve.precision=fp32", "serve.max_pixels=100000")


GOOD = encoded()
BAD = {
    "empty": (b"", "empty"),
    "text": (b"hello", "no image"),
    "svg": (b"<svg xmlns='http://www.w3.org/2000/svg'><script>alert(1)</script></svg>", "no image"),
    "pdf": (b"%PDF-1.7\n" + GOOD, "no image"),
    "truncated png": (GOOD[: len(GOOD) // 2], "damaged"),
    "head of a png": (GOOD[:20], "damaged|no image"),
    "truncated jpeg": (encoded(kind="JPEG")[:-200], "damaged"),
    "bomb": (png_that_claims(30_000, 30_000), "too many pixels"),
    "strip": (png_that_claims(100_000, 1), "too narrow"),
    "jpeg that is a bomb": (encoded(500, 500, "JPEG"), r"too many pixels.*serve\.max_pixels"),
}


@pytest.mark.parametrize("name", BAD)
def test_an_image_that_is_refused_harms_no_other_of_its_batch(model, name):
    content, reason = BAD[name]
    alone = model.answer([GOOD, GOOD])
    answers = model.answer([GOOD, content, GOOD])
    assert answers.errors[0] is answers.errors[2] is None
    assert answers.errors[1] is not None
    assert re.search(reason, answers.errors[1]), answers.errors[1]
    assert answers.observations[1] is None
    # The batch is that of the two good ones.
    np.testing.assert_array_equal(answers.probabilities[[0, 2]], alone.probabilities)


def test_what_follows_an_image_in_its_file_changes_nothing(model):
    for content in (GOOD, encoded(kind="JPEG")):
        polyglot = content + b"\n<script>alert(1)</script>PK\x03\x04"
        np.testing.assert_array_equal(model.answer([polyglot]).probabilities, model.answer([content]).probabilities)


def test_an_observation_is_of_the_image_as_it_was_sent(model):
    white = io.BytesIO()
    Image.new("RGB", (300, 100), "white").save(white, "PNG")
    (seen,) = model.answer([white.getvalue()]).observations
    assert seen is not None
    assert (seen.width, seen.height, seen.brightness) == (300, 100, 1.0)
    assert 1 / 3 <= seen.confidence <= 1


def test_large_images_of_a_batch_are_not_decoded_at_once(model, monkeypatch):
    groups = []
    transformed = ServedModel._transformed
    monkeypatch.setattr(
        ServedModel, "_transformed", lambda self, group: groups.append(len(group)) or transformed(self, group)
    )
    large, small = encoded(300, 300, "JPEG"), encoded(kind="JPEG")
    answers = model.answer([small, large, small, large, small])
    assert answers.errors == [None] * 5
    assert groups == [3, 2]


def test_onnx_and_bf16_give_the_labels_of_fp32(trained, tmp_path, model):
    contents = [encoded(40 + number, 36) for number in range(3)]
    expected = model.answer(contents)
    shutil.copytree(trained / "model", tmp_path / "model")
    onnx = model_of(tmp_path / "model", "serve.format=onnx")
    assert "ONNX Runtime" in onnx.description
    np.testing.assert_allclose(onnx.answer(contents).probabilities, expected.probabilities, atol=1e-4)
    bf16 = model_of(trained / "model", "serve.precision=bf16").answer(contents)
    np.testing.assert_allclose(bf16.probabilities, expected.probabilities, atol=0.05)


ENTRY = """
import os
import runner, torch

class Own:
    def init(self):
        self.model = runner.load_model(os.environ["RUNNER_MODEL_DIR"])

    def run(self, images):
        batch = torch.stack([self.model.transform(image) for image in images])
        with torch.no_grad():
            return self.model.module(batch).softmax(1)

class Short(Own):
    def run(self, images):
        return super().run(images)[:, :1]

class NoRun:
    def init(self): ...

class Fails(Own):
    def init(self):
        raise OSError("no such camera")
"""


def test_an_entry_answers_in_place_of_the_model(trained, tmp_path, monkeypatch, model):
    names = {"own": "Own", "short": "Short", "no_run": "NoRun", "fails": "Fails"}
    entries = {name: f"own_entry:{kind}" for name, kind in names.items()}
    monkeypatch.syspath_prepend(make_package(tmp_path, "own_entry", ENTRY, group="runner.serving", **entries))
    monkeypatch.delitem(sys.modules, "own_entry", raising=False)
    monkeypatch.setenv("RUNNER_MODEL_DIR", "")
    own = model_of(trained / "model", "serve.entry=own")
    answers = own.answer([GOOD, b"", GOOD])
    np.testing.assert_allclose(answers.probabilities[[0, 2]], model.answer([GOOD, GOOD]).probabilities, atol=1e-5)
    assert answers.errors[0] is answers.errors[2] is None
    assert "empty" in str(answers.errors[1])
    assert answers.observations[0] is not None
    with pytest.raises(InvalidModelError, match=r"returned the shape \(1, 1\); expected \(1, 3\)"):
        model_of(trained / "model", "serve.entry=short").answer([GOOD])
    for name, reason in {"no_run": "methods init", "fails": "OSError: no such camera", "none": "no installed"}.items():
        with pytest.raises(ConfigError, match=reason):
            model_of(trained / "model", f"serve.entry={name}")
