from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

import runner
from runner.base.errors import CheckpointError
from runner.run.package import add_metrics, read_package


@pytest.fixture
def model(trained, tmp_path) -> Path:
    return Path(shutil.copytree(trained / "model", tmp_path / "model"))


def test_it_says_where_it_comes_from_and_what_it_reaches(model, trained):
    card = read_package(model).card
    assert (card.format, card.num_classes) == (2, 3)
    assert card.origin["run"] == str(trained)
    assert set(card.origin["git"]) == {"commit", "dirty"}
    assert set(card.metrics) == {"val", "test"}


def test_metrics_are_added_without_touching_the_rest(model):
    before = json.loads((model / "model.json").read_text())
    weights = (model / "model.safetensors").read_bytes()
    add_metrics(model, {"val": {"top1": 0.5}})
    assert json.loads((model / "model.json").read_text()) == {**before, "metrics": {"val": {"top1": 0.5}}}
    assert (model / "model.safetensors").read_bytes() == weights


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": 3}, "of a newer runner; this one reads up to 2: update it"),
        ({"format": None}, "has format 'None'"),
        ({"classes": 3}, "is damaged: classes: "),
        ({"weights_sha256": "0"}, "is missing or damaged"),
    ],
)
def test_what_it_cannot_be_trusted_for_is_refused(model, change, message):
    card = json.loads((model / "model.json").read_text())
    (model / "model.json").write_text(json.dumps({**card, **change}))
    with pytest.raises(CheckpointError, match=message):
        runner.load_model(model)


def test_weights_of_another_architecture_are_refused(model):
    card = json.loads((model / "model.json").read_text())
    card["architecture"]["name"] = "squeezenet1_1"
    (model / "model.json").write_text(json.dumps(card))
    with pytest.raises(CheckpointError, match="does not fit the architecture"):
        runner.load_model(model)
