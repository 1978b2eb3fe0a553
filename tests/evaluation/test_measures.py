"""Compared with scikit-learn, and with values computed by hand."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.metrics import confusion_matrix as sklearn_matrix
from sklearn.metrics import precision_recall_fscore_support

from runner.evaluation.confusion import Confusion
from runner.evaluation.measures import class_measures, expected_calibration_error, per_class


@pytest.mark.parametrize("num_classes", [2, 7, 100])
def test_measures_equal_those_of_scikit_learn(num_classes):
    generator = np.random.default_rng(num_classes)
    labels = generator.integers(0, num_classes, 2000)
    predicted = np.where(generator.random(2000) < 0.6, labels, generator.integers(0, num_classes, 2000))
    measured = class_measures(labels, predicted, tuple(map(str, range(num_classes))))
    matrix = sklearn_matrix(labels, predicted, labels=range(num_classes))
    assert measured["confusion_matrix"] == matrix.tolist()
    precision, recall, f1, support = precision_recall_fscore_support(labels, predicted, labels=range(num_classes))
    for name, values in {"precision": precision, "recall": recall, "f1": f1, "support": support}.items():
        assert [entry[name] for entry in measured["per_class"]] == pytest.approx(values.tolist())
    for kind in ("macro", "weighted"):
        expected = precision_recall_fscore_support(labels, predicted, average=kind)
        assert list(measured[f"{kind}_average"].values()) == pytest.approx(expected[:3])


def test_a_class_without_images_or_predictions_has_measures_of_zero():
    each = per_class(Confusion.of(np.array([0, 0, 1]), np.array([0, 1, 1]), 3))
    assert each.precision.tolist() == [1, 0.5, 0]
    assert each.recall.tolist() == [0.5, 1, 0]
    assert each.support.tolist() == [2, 1, 0]
    assert each.macro_average()["recall"] == 0.75, "a class without images is none of those that are averaged"


def test_expected_calibration_error_equals_the_value_computed_by_hand():
    # Bins of a fifteenth: (8/15, 9/15] holds both 0.55 and 0.6; the others stand alone.
    probability = np.array([0.55, 0.6, 0.95, 1.0])
    is_right = np.array([True, False, True, False])
    expected = (abs(1 - 0.55 + 0 - 0.6) + abs(1 - 0.95 + 0 - 1.0)) / 4
    assert expected_calibration_error(probability, is_right) == pytest.approx(expected)
    assert expected_calibration_error(np.ones(5), np.ones(5, dtype=bool)) == 0
    assert expected_calibration_error(np.zeros(5), np.ones(5, dtype=bool)) == 1
