"""Compared with scikit-learn, and with what can be reckoned by hand."""

from __future__ import annotations

import json

import numpy as np
import pytest
from sklearn.metrics import confusion_matrix as sklearn_matrix
from sklearn.metrics import precision_recall_fscore_support

from runner.evaluation.confusion import Confusion, shares_of_rows
from runner.evaluation.measures import expected_calibration_error, of_classes, per_class


@pytest.mark.parametrize("num_classes", [2, 7, 100])
def test_they_are_those_of_scikit_learn(num_classes):
    generator = np.random.default_rng(num_classes)
    labels = generator.integers(0, num_classes, 2000)
    predicted = np.where(generator.random(2000) < 0.6, labels, generator.integers(0, num_classes, 2000))
    everything = of_classes(labels, predicted, tuple(map(str, range(num_classes))))
    matrix = sklearn_matrix(labels, predicted, labels=range(num_classes))
    assert everything["confusion_matrix"] == matrix.tolist()
    precision, recall, f1, support = precision_recall_fscore_support(labels, predicted, labels=range(num_classes))
    for name, values in {"precision": precision, "recall": recall, "f1": f1, "support": support}.items():
        assert [entry[name] for entry in everything["per_class"]] == pytest.approx(values.tolist())
    for kind in ("macro", "weighted"):
        expected = precision_recall_fscore_support(labels, predicted, average=kind)
        assert list(everything[f"{kind}_average"].values()) == pytest.approx(expected[:3])


def test_a_class_without_images_or_guesses_divides_nothing_by_zero():
    each = per_class(Confusion.of(np.array([0, 0, 1]), np.array([0, 1, 1]), 3))
    assert each.precision.tolist() == [1, 0.5, 0]
    assert each.recall.tolist() == [0.5, 1, 0]
    assert each.support.tolist() == [2, 1, 0]
    assert each.macro_average()["recall"] == 0.75, "a class without images is none of those that are averaged"


def test_calibration_by_hand():
    # Bins of a fifteenth: (8/15, 9/15] holds both 0.55 and 0.6; the others stand alone.
    probability = np.array([0.55, 0.6, 0.95, 1.0])
    is_right = np.array([True, False, True, False])
    expected = (abs(1 - 0.55 + 0 - 0.6) + abs(1 - 0.95 + 0 - 1.0)) / 4
    assert expected_calibration_error(probability, is_right) == pytest.approx(expected)
    assert expected_calibration_error(np.ones(5), np.ones(5, dtype=bool)) == 0
    assert expected_calibration_error(np.zeros(5), np.ones(5, dtype=bool)) == 1


@pytest.mark.parametrize("num_classes", [3, 2000, 21_841])
def test_a_confusion_matrix_survives_json_and_is_as_small_as_its_images(num_classes):
    generator = np.random.default_rng(1)
    labels, predicted = generator.integers(0, num_classes, (2, 500))
    confusion = Confusion.of(labels, predicted, num_classes)
    text = json.dumps(confusion.to_json())
    again = Confusion.from_json(json.loads(text), num_classes)
    for name in ("truth", "predicted", "count", "hits", "of_truth", "of_prediction"):
        np.testing.assert_array_equal(getattr(again, name), getattr(confusion, name))
    assert isinstance(json.loads(text), list) == (num_classes <= 2000)
    assert num_classes == 2000 or len(text) < 20_000
    np.testing.assert_array_equal(confusion.of_truth, np.bincount(labels, minlength=num_classes))
    np.testing.assert_array_equal(confusion.of_prediction, np.bincount(predicted, minlength=num_classes))
    bins = confusion.for_picture()
    size = min(num_classes, 1000)
    expected = np.zeros((size, size), dtype=np.int64)
    for truth, guess in zip(labels * size // num_classes, predicted * size // num_classes, strict=True):
        expected[truth, guess] += 1
    np.testing.assert_array_equal(bins, expected)


def test_shares_of_rows_divide_nothing_by_zero():
    assert shares_of_rows(np.array([[1, 3], [0, 0]])).tolist() == [[0.25, 0.75], [0, 0]]
