"""What a training leaves of its best weights."""

from __future__ import annotations

import csv
import json
import math

import pytest

import runner
from runner.base.errors import InvalidDatasetError, StoppedOnRequest
from runner.config.saved import load_saved
from runner.launch import launch
from runner.launch.preflight import preflight
from runner.training import final
from runner.training.attempt import Attempt, Training
from tests.conftest import AWKWARD_CLASSES, SMALL_NET

SMALL = (*SMALL_NET, "trainer.epochs=1")


def read(file):
    return json.loads(file.read_text())


def test_the_best_weights_reach_what_they_reached_in_their_epoch(trained):
    record, metrics = read(trained / "run.json"), read(trained / "evaluation" / "metrics.json")
    assert record["best"]["metric"] == "val_loss"
    assert metrics["loss"] == record["best"]["value"]
    assert metrics["weights"]["kind"] == record["best"]["weights"]
    assert metrics["count"] == sum(map(sum, metrics["confusion_matrix"])) == 21
    assert metrics["correct"] == sum(row[number] for number, row in enumerate(metrics["confusion_matrix"]))
    assert metrics["classes"] == list(AWKWARD_CLASSES)
    assert "because of rounding" not in (trained / "logs" / "rank_0.log").read_text()


def test_the_test_split_is_evaluated_once_into_the_record(trained):
    record, metrics = read(trained / "run.json"), read(trained / "evaluation" / "test" / "metrics.json")
    assert record["test"]["count"] == 9
    assert {key: metrics[key] for key in record["test"]} == record["test"]
    card = read(trained / "model" / "model.json")
    assert card["metrics"]["test"] == record["test"]
    assert card["metrics"]["val"]["count"] == 21
    assert card["origin"]["run"] == str(trained)
    assert card["origin"]["git"] == record["git"]


def test_each_image_has_a_row_with_its_truth_and_its_loss(trained):
    metrics = read(trained / "evaluation" / "metrics.json")
    with (trained / "evaluation" / "predictions.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [int(row["image"]) for row in rows] == list(range(21))
    assert all(row["path"].endswith(f"/{row['label'].removeprefix(chr(39))}/{n % 7}.png") for n, row in enumerate(rows))
    assert {row["label"] for row in rows} == {"<script>", "'=cmd()", "🐜 ant"}, "no cell is a formula"
    assert math.fsum(float(row["loss"]) for row in rows) / 21 == pytest.approx(metrics["loss"])
    assert sum(row["label"] == row["predicted"] for row in rows) == metrics["correct"]


def test_a_stop_while_it_is_evaluated_loses_nothing(tiny, tmp_path, monkeypatch):
    evaluate_split = final.evaluate_split

    def stopped(*args, stop, **kwargs):
        stop.received = "SIGTERM"
        return evaluate_split(*args, stop=stop, **kwargs)

    monkeypatch.setattr(final, "evaluate_split", stopped)
    with pytest.raises(StoppedOnRequest, match=r"evaluating on the val split, after training; everything is saved"):
        runner.fit(runner.load_config(tiny(*SMALL)))
    monkeypatch.undo()
    (file,) = tmp_path.glob("outputs/*/*/run.json")
    assert read(file)["status"] == "stopped"
    assert not (file.parent / "evaluation").exists()
    runner.load_model(file.parent)  # is there already
    launch(preflight(load_saved(file.parent)), Training(attempt=Attempt(is_resumed=True)), folder=file.parent)
    assert read(file)["status"] == "completed"
    assert read(file.parent / "evaluation" / "metrics.json")["count"] == 24


def test_a_test_split_that_cannot_be_read_is_said_when_the_model_is_there(tiny, trained, tmp_path):
    import shutil

    shutil.copytree(trained.parents[2] / "photos", tmp_path / "photos")
    damaged = tmp_path / "photos" / "test" / "<script>" / "1.png"
    content = damaged.read_bytes()
    damaged.write_bytes(content[:40])
    overrides = [item for item in tiny(*SMALL) if not item.startswith("data=") and "num_" not in item]
    with pytest.raises(InvalidDatasetError, match=r"training is done and the model is packaged.*1\.png"):
        runner.fit(runner.load_config([*overrides, "data=folder", f"data.root={tmp_path / 'photos'}"]))
    (file,) = tmp_path.glob("outputs/*/*/run.json")
    assert read(file)["status"] == "failed"
    runner.load_model(file.parent)
    damaged.write_bytes(content)
    launch(preflight(load_saved(file.parent)), Training(attempt=Attempt(is_resumed=True)), folder=file.parent)
    assert (read(file)["status"], read(file)["test"]["count"]) == ("completed", 9)


def test_skipped_images_of_the_test_split_are_counted_and_a_warning(tiny, trained, tmp_path):
    import shutil

    shutil.copytree(trained.parents[2] / "photos", tmp_path / "photos")
    (tmp_path / "photos" / "test" / "<script>" / "1.png").write_bytes(b"")
    overrides = [item for item in tiny(*SMALL) if not item.startswith("data=") and "num_" not in item]
    skipping = (
        "data=folder",
        f"data.root={tmp_path / 'photos'}",
        "data.on_bad_image=skip",
        "data.max_bad_fraction=0.2",
    )
    run_dir = runner.fit(runner.load_config([*overrides, *skipping])).run_dir
    record = read(run_dir / "run.json")
    assert (record["test"]["count"], record["test"]["num_skipped"]) == (8, 1)
    (warning,) = record["warnings"]
    assert warning.startswith("data.test: 1 of 9 images were skipped: ")
