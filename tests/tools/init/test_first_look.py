from __future__ import annotations

from pathlib import Path

import pytest

from runner.base.errors import InvalidDatasetError, NotLabeledDatasetError
from runner.tools.init.first_look import look_at


@pytest.fixture
def fill(tmp_path, write_image):
    """A function (folder, images per class, size): fills folders of classes below tmp_path/photos."""

    def fill(folder: str, size: tuple[int, int] = (24, 20), **counts: int) -> Path:
        for label, count in counts.items():
            for number in range(count):
                write_image(tmp_path / "photos" / folder / label / f"{number}.png", number, size)
        return tmp_path / "photos"

    return fill


def test_a_folder_of_classes_has_no_validation_split(fill):
    photos = fill("", ants=10, bees=5)
    look = look_at(photos)
    assert look.places == {"train": str(photos)}
    assert look.num_per_class == {"ants": 10, "bees": 5}
    assert (look.num_train, look.num_val, look.num_test) == (15, None, None)
    # 12 of them are left for training, and each is measured.
    assert look.shorter_sides == (20,) * 12


def test_splits_are_counted_apart(fill):
    photos = fill("train", ants=4, bees=3)
    fill("val", ants=2, bees=2)
    fill("test", ants=1)
    look = look_at(photos)
    assert look.places == {"root": str(photos)}
    assert (look.num_per_class, look.num_val, look.num_test) == ({"ants": 4, "bees": 3}, 4, 1)


def test_a_validation_split_of_another_name_is_found(fill):
    photos = fill("train", ants=4, bees=3)
    fill("valid", ants=2, bees=2)
    look = look_at(photos)
    assert look.places == {"root": str(photos), "val": f"{photos}/valid"}
    assert look.num_val == 4


def test_a_class_that_is_called_train_is_no_split(fill):
    assert look_at(fill("", train=4, bus=4)).num_per_class == {"bus": 4, "train": 4}


def test_images_that_cannot_be_opened_are_counted(fill):
    photos = fill("train", ants=4, bees=3)
    fill("val", ants=2, bees=2)
    (photos / "train" / "ants" / "x.png").write_bytes(b"no image")
    look = look_at(photos)
    assert (look.num_unreadable, len(look.shorter_sides)) == (1, 7)


def test_what_training_would_refuse_is_refused(fill, tmp_path):
    with pytest.raises(InvalidDatasetError, match="only one class folder, ants"):
        look_at(fill("", ants=3))
    (tmp_path / "flat").mkdir()
    (tmp_path / "flat" / "1.jpg").write_bytes(b"")
    with pytest.raises((InvalidDatasetError, NotLabeledDatasetError), match="flat"):
        look_at(tmp_path / "flat")
    with pytest.raises(InvalidDatasetError, match="missing"):
        look_at(tmp_path / "missing")
