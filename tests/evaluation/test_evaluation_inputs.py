from __future__ import annotations

import json
from pathlib import Path

import pytest

from runner.base.errors import ConfigError, InvalidDatasetError
from runner.config.saved import load_saved
from runner.evaluation.evaluation_inputs import (
    EvaluationImages,
    EvaluationInputs,
    load_evaluation_config,
    open_images,
    output_folder,
)


def images_of(run_dir, split, *overrides):
    config = load_evaluation_config(run_dir, overrides)
    classes = tuple(json.loads((run_dir / "classes.json").read_text()))
    record = json.loads((run_dir / "run.json").read_text())
    return open_images(config, load_saved(run_dir, only_reads=True), overrides, classes, split, record=record)


def test_keys_of_the_training_are_refused_all_at_once(trained):
    with pytest.raises(ConfigError) as refused:
        load_evaluation_config(trained, ["optimizer.lr=1", "schedule=cosine", "trainer.device=cpu"])
    assert [problem.key for problem in refused.value.problems] == ["optimizer.lr", "schedule"]


def test_another_data_set_keeps_the_preprocessing_of_the_run(trained):
    own = load_saved(trained, only_reads=True).data
    other = load_evaluation_config(trained, ["data=digits"]).data
    assert (other.source, own.source) == ("digits", "folder")
    assert (other.image_size, other.eval_transforms, other.normalize) == (
        own.image_size,
        own.eval_transforms,
        own.normalize,
    )


def test_a_split_of_the_run_is_its_own_and_a_folder_is_not(trained):
    own = images_of(trained, "val")
    photos = Path(own.data["root"])
    assert (own.is_own, own.differences, len(own.source)) == (True, (), 21)
    other = images_of(trained, "val", f"data.val={photos / 'test'}")
    assert (other.is_own, other.data["folder"], len(other.source)) == (False, str(photos / "test"), 9)
    assert images_of(trained, "val", f"data.root={photos / 'train'}").data["folder"] == str(photos / "train")


def test_a_class_that_the_model_lacks_is_named(trained, tmp_path, write_image):
    write_image(tmp_path / "photos" / "bee" / "1.png")
    with pytest.raises(InvalidDatasetError, match="1 of 1 classes are none that the model knows: bee"):
        images_of(trained, "val", f"data.val={tmp_path / 'photos'}")


@pytest.mark.parametrize(
    ("weights", "split", "folder", "expected"),
    [
        ("", "val", None, ""),
        ("", "test", None, "test"),
        ("last-raw", "val", None, "last-raw"),
        ("", "val", "/data/birds", "birds"),
        ("last", "test", "/data/birds/test", "last-birds-test"),
    ],
)
def test_the_folder_of_the_result_is_named_after_what_differs(weights, split, folder, expected, tmp_path):
    images = EvaluationImages(source=None, notes=(), data={"folder": folder}, is_own=folder is None)
    assert output_folder(tmp_path, images, weights=weights, split=split) == tmp_path / "evaluation" / expected


def test_differences_are_in_the_json_only_where_there_are_some():
    same = EvaluationInputs(split="val", data={}, weights={})
    other = EvaluationInputs(split="val", data={}, weights={}, differences=("a",))
    assert "differences_from_training" not in same.to_json()
    assert other.to_json()["differences_from_training"] == ["a"]
