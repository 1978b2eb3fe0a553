from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import pytest

import runner
from runner.base.errors import CheckpointError
from runner.run.package import add_metrics, read_package, write_package
from tests.kills import killed_at


@pytest.fixture
def model(trained, tmp_path) -> Path:
    return Path(shutil.copytree(trained / "model", tmp_path / "model"))


def test_the_package_has_its_origin_and_metrics(model, trained):
    card = read_package(model).card
    assert (card.format, card.num_classes) == (3, 3)
    assert card.origin["run"] == str(trained)
    assert set(card.origin["git"]) == {"commit", "dirty"}
    assert set(card.metrics) == {"val", "test"}


def test_metrics_are_added_without_touching_the_rest(model):
    before = json.loads((model / "model.json").read_text())
    weights = (model / "model.safetensors").read_bytes()
    other = {**before["reference"], "predicted_class": [21, 0, 0]}
    add_metrics(model, {"val": {"top1": 0.5}}, other)
    changed = {**before, "metrics": {"val": {"top1": 0.5}}, "reference": other}
    assert json.loads((model / "model.json").read_text()) == changed
    assert (model / "model.safetensors").read_bytes() == weights


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": 4}, "of a newer runner; this one reads up to 3: update it"),
        ({"reference": {"num_images": 1}}, "is damaged: reference.brightness: "),
        ({"format": None}, "has format 'None'"),
        ({"classes": 3}, "is damaged: classes: "),
        ({"weights_sha256": "0"}, "is missing or damaged"),
    ],
)
def test_a_damaged_or_newer_card_is_refused(model, change, message):
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


@pytest.mark.skipif(sys.platform != "linux", reason="forks, and exchanges two names in one step")
def test_a_package_that_is_replaced_is_there_whenever_the_process_is_killed(model, tmp_path):
    weights = Path(shutil.copyfile(model / "model.safetensors", tmp_path / "weights"))
    written = json.loads((model / "model.json").read_text())
    card = {key: value for key, value in written.items() if key not in ("format", "weights_sha256")}
    card["metrics"] = {"new": True}
    found, event_number = [], 1
    while killed_at(event_number, lambda: write_package(model, weights, card)):
        found.append(read_package(model).card.metrics == {"new": True})
        event_number += 1
    assert len(found) > 10
    assert found == sorted(found), "the old one, until it is the new one"
    assert {False, True} == set(found)
    assert read_package(model).card.metrics == {"new": True}


def test_the_reference_counts_the_validation_images(model, trained):
    reference = read_package(model).reference
    assert reference.num_images == 21
    assert (reference.width.edges[0], reference.height.edges[0]) == (48, 36)
    assert (reference.width.counts, reference.aspect_ratio.counts) == ((0, 21, 0), (0, 21, 0))
    metrics = json.loads((trained / "evaluation" / "metrics.json").read_text())
    assert metrics["profile"] == reference.model_dump(mode="json")
    matrix = metrics["confusion_matrix"]
    assert list(reference.predicted_class) == [sum(row[number] for row in matrix) for number in range(3)]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"predicted_class": [21, 0]}, "num_classes = 3, but the reference counts 2"),
        ({"predicted_class": [20, 0, 0]}, "num_images = 21, but predicted_class counts others"),
        ({"width": {"edges": [48.0, 48.0], "counts": [0, 21, 0]}}, "its edges do not ascend"),
        ({"width": {"edges": [48.0, 49.0], "counts": [21, 0]}}, "2 edges, but 2 counts"),
    ],
)
def test_a_reference_that_contradicts_itself_is_refused(model, change, message):
    card = json.loads((model / "model.json").read_text())
    card["reference"].update(change)
    (model / "model.json").write_text(json.dumps(card))
    with pytest.raises(CheckpointError, match=message):
        read_package(model)
