from __future__ import annotations

import json
from pathlib import Path

import pytest

from runner.base.errors import InvalidDatasetError, NotLabeledDatasetError
from runner.tools.dataset.annotations import NO_ANNOTATION, SEVERAL_LABELS, read_coco

TREE = {
    "images": [{"id": 1, "file_name": "1.jpg"}, {"id": 2, "file_name": "d/2.jpg"}, {"id": 3, "file_name": "3.jpg"}],
    "annotations": [
        {"id": 1, "image_id": 1, "category_id": 7, "bbox": [0, 0, 2, 2]},
        {"id": 2, "image_id": 1, "category_id": 7, "bbox": [0, 0, 9, 9]},
        {"id": 3, "image_id": 2, "category_id": 7, "bbox": [0, 0, 5, 1]},
        {"id": 4, "image_id": 2, "category_id": 8, "bbox": [0, 0, 1, 1], "area": 6.5},
    ],
    "categories": [{"id": 7, "name": "ant"}, {"id": 8, "name": "bee"}],
}


def write(tmp_path: Path, tree: object) -> Path:
    file = tmp_path / "instances.json"
    file.write_text(tree if isinstance(tree, str) else json.dumps(tree))
    return file


@pytest.mark.parametrize(("rule", "label"), [("largest", "bee"), ("first", "ant"), ("skip", None)])
def test_the_rule_for_several_labels(tmp_path, rule, label):
    found = read_coco(write(tmp_path, TREE), rule)
    assert found.labels == {"1.jpg": "ant"} | ({"d/2.jpg": label} if label else {})
    assert found.left_out[NO_ANNOTATION] == ["3.jpg"]
    assert found.left_out.get(SEVERAL_LABELS, []) == ([] if label else ["d/2.jpg"])


def test_several_labels_are_an_error_unless_a_rule_is_chosen(tmp_path):
    with pytest.raises(InvalidDatasetError, match=r"d/2.jpg has several labels: ant, bee; choose a rule"):
        read_coco(write(tmp_path, TREE), "error")


@pytest.mark.parametrize("annotations", [[], None])
def test_without_annotations_there_is_no_label(tmp_path, annotations):
    with pytest.raises(NotLabeledDatasetError, match="no annotations"):
        read_coco(write(tmp_path, TREE | {"annotations": annotations}), "error")


@pytest.mark.parametrize(
    ("tree", "message"),
    [
        ("{", "this is no JSON"),
        ("[" * 100_000, "this is no JSON"),
        ([], "not in COCO's format"),
        ({"annotations": [1]}, "not in COCO's format"),
        (TREE | {"categories": []}, "7 is missing"),
        (TREE | {"images": [{"id": 1}]}, "'file_name' is missing"),
        (TREE | {"annotations": [3]}, "not as COCO's format has it"),
        (TREE | {"images": [{"id": 9, "file_name": "9.jpg"}]}, "annotations of images that are not listed"),
    ],
)
def test_files_that_are_refused(tmp_path, tree, message):
    with pytest.raises(InvalidDatasetError, match=message):
        read_coco(write(tmp_path, tree), "first")


def test_half_a_character_is_told_and_a_device_is_not_read(tmp_path):
    tree = json.loads(write(tmp_path, TREE).read_text())
    tree["images"][1]["file_name"] = "\ud800.jpg"
    with pytest.raises(InvalidDatasetError, match=r"\\ud800.jpg has several labels: ant, bee"):
        read_coco(write(tmp_path, tree), "error")
    with pytest.raises(InvalidDatasetError, match="no regular file"):
        read_coco(Path("/dev/zero"), "error")
