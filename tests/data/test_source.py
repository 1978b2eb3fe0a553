from __future__ import annotations

import pickle

import numpy as np
import pytest

from runner.base.errors import InvalidDatasetError
from runner.data.source import FolderSource, Subset
from runner.data.sources.index import scan_class_folders


@pytest.fixture
def source(tmp_path, write_image) -> FolderSource:
    for number, name in enumerate(("ant", "ant", "bee")):
        write_image(tmp_path / name / f"{number}.png", seed=number)
    index = scan_class_folders(str(tmp_path), key="data.train")
    return FolderSource(index, index.labels)


def test_images_of_a_folder_are_opened_by_their_number(source, tmp_path):
    assert (len(source), source.labels.tolist()) == (3, [0, 0, 1])
    image = source.open(2)
    assert (image.height, image.width) == image.pixels().shape[:2] == (20, 24)
    assert source.bytes_once_decoded(2) == 20 * 24 * 3
    assert source.file(2) == source.describe(2) == str(tmp_path / "bee" / "2.png")


def test_an_image_of_too_many_pixels_is_refused(source):
    small = FolderSource(source.index, source.labels, max_pixels=20 * 24 - 1)
    with pytest.raises(InvalidDatasetError, match=r"0\.png: too many pixels: 24 × 20 = 480, more than data.max_pixels"):
        small.open(0)


def test_labels_of_the_index_are_pickled_once_and_others_too(source):
    own = pickle.dumps(source)
    other = FolderSource(source.index, source.labels + 5, source.max_pixels)
    assert len(own) < len(pickle.dumps(other))
    assert pickle.loads(own).labels.tolist() == [0, 0, 1]
    assert pickle.loads(pickle.dumps(other)).labels.tolist() == [5, 5, 6]


def test_a_subset_is_numbered_from_zero(source):
    subset = Subset(source, ids=np.array([2, 0]), labels=np.array([7, 8]))
    assert len(subset) == 2
    assert [subset.file(image) for image in (0, 1)] == [source.file(2), source.file(0)]
    assert np.array_equal(subset.open(0).pixels(), source.open(2).pixels())
    assert subset.describe(1) == source.describe(0)
    assert subset.bytes_once_decoded(1) == source.bytes_once_decoded(0)
