from __future__ import annotations

import json
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image

from runner.base.errors import CheckpointError, OutputError
from runner.data.sources.synthetic import SyntheticSource
from runner.evaluation.confusion import Confusion
from runner.evaluation.files import check_free, write_evaluation
from runner.evaluation.measures import of_classes
from runner.evaluation.picture import confusion_png
from runner.evaluation.subject import Subject
from runner.tools.report.confusion import confusions

SUBJECT = Subject(split="val", data={"root": "a"}, weights={"sha256": "1"})


@pytest.mark.parametrize("num_classes", [2, 30, 300, 2500])
def test_the_picture_opens_and_is_of_bearable_size(num_classes, tmp_path):
    names = ("<script>", "$x_1^2$ 🐜 " + "long " * 20, *map(str, range(2, num_classes)))
    matrix = np.random.default_rng(0).integers(0, 5, (num_classes, num_classes))
    matrix[0] = 0  # a class without images
    file = tmp_path / "matrix.png"
    file.write_bytes(confusion_png(Confusion.from_json(matrix.tolist(), num_classes), names))
    with Image.open(file) as image:
        assert 300 < image.width < 2000
        assert 300 < image.height < 2000
        assert len(image.convert("RGB").getcolors(maxcolors=1 << 24)) > 10


def test_an_evaluation_of_the_same_is_replaced_and_of_something_else_is_not(tmp_path):
    folder = tmp_path / "evaluation"
    check_free(folder, SUBJECT, is_own=False)
    (folder / "logs").mkdir(parents=True)
    check_free(folder, SUBJECT, is_own=False)
    (folder / "metrics.json").write_text(json.dumps(SUBJECT.to_json()))
    check_free(folder, SUBJECT, is_own=False)
    other = Subject(split="test", data={"root": "a"}, weights={"sha256": "2"})
    with pytest.raises(OutputError, match=r"something else \(other split and weights\).*output=DIR"):
        check_free(folder, other, is_own=False)
    later = Subject(split="val", data={"root": "a"}, weights={"sha256": "2"})
    check_free(folder, later, is_own=True)  # the best weights of a run that has gone on


def test_files_of_the_user_are_in_nobody_s_way(tmp_path):
    (tmp_path / "predictions.csv").write_text("mine")
    with pytest.raises(OutputError, match="is not empty and holds no evaluation"):
        check_free(tmp_path, SUBJECT, is_own=False)
    with pytest.raises(OutputError, match="is a file"):
        check_free(tmp_path / "predictions.csv", SUBJECT, is_own=False)
    (tmp_path / "metrics.json").write_text("{")
    with pytest.raises(CheckpointError, match="can't be read"):
        check_free(tmp_path, SUBJECT, is_own=True)


def test_twenty_thousand_classes_make_no_matrix(tmp_path):
    classes = tuple(f"class {number}" for number in range(20_000))
    labels = np.array([0, 0, 7, 19_999])
    predicted = np.array([0, 7, 7, 0])
    source = SyntheticSource(np.zeros((1, 1, 1, 3), np.uint8), labels)
    findings = SimpleNamespace(
        images=np.arange(4), predicted=predicted, probability=np.full(4, 0.5), loss=np.full(4, 0.7)
    )
    write_evaluation(tmp_path, of_classes(labels, predicted, classes), findings, source)
    assert (tmp_path / "confusion_matrix.csv").read_text().splitlines() == [
        "true,predicted,images",
        "class 0,class 0,1",
        "class 0,class 7,1",
        "class 7,class 7,1",
        "class 19999,class 0,1",
    ]
    metrics = json.loads((tmp_path / "metrics.json").read_text())
    assert metrics["confusion_matrix"] == {
        "truth": [0, 0, 7, 19_999],
        "predicted": [0, 7, 7, 0],
        "count": [1, 1, 1, 1],
    }
    told = confusions(metrics)
    assert told is not None
    assert [(pair.truth, pair.predicted, pair.share) for pair in told.pairs] == [
        ("class 0", "class 7", 0.5),
        ("class 19999", "class 0", 1.0),
    ]
    assert told.picture is not None
    assert len(told.picture) < 1_000_000
