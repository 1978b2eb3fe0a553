from __future__ import annotations

import numpy as np
import pytest
from PIL import Image

from runner.base.errors import InvalidDatasetError
from runner.data.sources.labelled import open_class_folders, relabelled


@pytest.fixture
def folder(tmp_path):
    for name, count in (("bee", 2), ("wasp", 1)):
        (tmp_path / name).mkdir()
        for number in range(count):
            Image.new("RGB", (4, 4)).save(tmp_path / name / f"{number}.png")
    return str(tmp_path)


def test_labels_follow_the_names(folder, data_config):
    source, notes = open_class_folders(folder, ("wasp", "ant", "bee"), data_config("folder"), key="data.root")
    assert source.labels.tolist() == [2, 2, 0]
    assert notes == ("data.root: no image of 1 of 3 classes: ant",)


def test_an_unknown_class_is_refused_by_name(folder, data_config):
    with pytest.raises(
        InvalidDatasetError, match=r"1 of 2 classes are none that the model knows: wasp; it knows ant, bee"
    ):
        open_class_folders(folder, ("ant", "bee"), data_config("folder"), key="data.root")


def test_another_order_of_classes_changes_labels_only(folder, data_config):
    source, _ = open_class_folders(folder, ("bee", "wasp"), data_config("folder"), key="data.root")
    assert relabelled(source, ("bee", "wasp"), ("bee", "wasp"), place="here") is source
    other = relabelled(source, ("bee", "wasp"), ("wasp", "bee"), place="here")
    assert other.labels.tolist() == [1, 1, 0]
    assert [other.describe(image) for image in range(3)] == [source.describe(image) for image in range(3)]
    assert np.array_equal(other.open(2).pixels(), source.open(2).pixels())
