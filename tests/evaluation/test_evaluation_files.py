from __future__ import annotations

import json

import numpy as np
import pytest
from PIL import Image

from runner.errors import CheckpointError, OutputError
from runner.evaluation.files import check_free
from runner.evaluation.picture import confusion_png
from runner.evaluation.subject import Subject

SUBJECT = Subject(split="val", data={"root": "a"}, weights={"sha256": "1"})


@pytest.mark.parametrize("num_classes", [2, 30, 300])
def test_the_picture_opens_and_is_of_bearable_size(num_classes, tmp_path):
    names = ("<script>", "$x_1^2$ 🐜 " + "long " * 20, *map(str, range(2, num_classes)))
    matrix = np.random.default_rng(0).integers(0, 5, (num_classes, num_classes))
    matrix[0] = 0  # a class without images
    file = tmp_path / "matrix.png"
    file.write_bytes(confusion_png(matrix, names))
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
