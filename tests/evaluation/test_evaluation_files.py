from __future__ import annotations

import json
from types import SimpleNamespace

import numpy as np
import pytest

from runner.base.errors import CheckpointError, OutputError
from runner.data.sources.synthetic import SyntheticSource
from runner.evaluation.evaluation_files import check_free, write_evaluation
from runner.evaluation.evaluation_inputs import EvaluationInputs
from runner.evaluation.measures import class_measures
from runner.tools.report.charts import confusions

INPUTS = EvaluationInputs(split="val", data={"root": "a"}, weights={"sha256": "1"})


def test_only_an_evaluation_of_the_same_weights_and_images_is_replaced(tmp_path):
    folder = tmp_path / "evaluation"
    check_free(folder, INPUTS, is_own=False)
    (folder / "logs").mkdir(parents=True)
    check_free(folder, INPUTS, is_own=False)
    (folder / "metrics.json").write_text(json.dumps(INPUTS.to_json()))
    check_free(folder, INPUTS, is_own=False)
    other = EvaluationInputs(split="test", data={"root": "a"}, weights={"sha256": "2"})
    with pytest.raises(OutputError, match=r"something else \(other split and weights\).*output=DIR"):
        check_free(folder, other, is_own=False)
    continued = EvaluationInputs(split="val", data={"root": "a"}, weights={"sha256": "2"})
    check_free(folder, continued, is_own=True)  # the best weights of a run that has been continued


def test_a_folder_with_files_of_the_user_is_refused(tmp_path):
    (tmp_path / "predictions.csv").write_text("mine")
    with pytest.raises(OutputError, match="is not empty and holds no evaluation"):
        check_free(tmp_path, INPUTS, is_own=False)
    with pytest.raises(OutputError, match="is a file"):
        check_free(tmp_path / "predictions.csv", INPUTS, is_own=False)
    (tmp_path / "metrics.json").write_text("{")
    with pytest.raises(CheckpointError, match="this is no JSON"):
        check_free(tmp_path, INPUTS, is_own=True)


def test_with_twenty_thousand_classes_the_matrix_is_written_sparsely(tmp_path):
    classes = tuple(f"class {number}" for number in range(20_000))
    labels = np.array([0, 0, 7, 19_999])
    predicted = np.array([0, 7, 7, 0])
    source = SyntheticSource(np.zeros((1, 1, 1, 3), np.uint8), labels)
    results = SimpleNamespace(
        images=np.arange(4), predicted=predicted, probability=np.full(4, 0.5), loss=np.full(4, 0.7)
    )
    write_evaluation(tmp_path, class_measures(labels, predicted, classes), results, source)
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
    drawn = confusions(metrics)
    assert drawn is not None
    assert [(pair.truth, pair.predicted, pair.share) for pair in drawn.pairs] == [
        ("class 0", "class 7", 0.5),
        ("class 19999", "class 0", 1.0),
    ]
    assert drawn.picture is not None
    assert len(drawn.picture) < 1_000_000
