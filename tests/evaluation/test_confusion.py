from __future__ import annotations

import json

import numpy as np
import pytest

from runner.evaluation.confusion import Confusion, shares_of_rows


@pytest.mark.parametrize("num_classes", [3, 2000, 21_841])
def test_a_confusion_matrix_is_the_same_after_json_and_sparse_with_many_classes(num_classes):
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


def test_rows_without_images_have_shares_of_zero():
    assert shares_of_rows(np.array([[1, 3], [0, 0]])).tolist() == [[0.25, 0.75], [0, 0]]
