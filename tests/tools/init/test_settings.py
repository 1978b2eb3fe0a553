from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from runner.base.errors import UsageError
from runner.tools.init.first_look import FirstLook
from runner.tools.init.settings import (
    BatchChoice,
    choose_settings,
    image_size,
    largest_batch_size,
    path_from,
    photo_counts,
)

LOOK = FirstLook(
    places={"root": "/data/photos"},
    num_per_class={"ants": 123, "bees": 121},
    num_val=153,
    num_test=None,
    shorter_sides=(130, 300, 400),
    num_unreadable=0,
    notes=(),
)
MEASURED = BatchChoice(16, {8: 20.0, 16: 30.0})


def settings_of(look: FirstLook, batch: BatchChoice = MEASURED) -> dict[str, object]:
    chosen = choose_settings(look, batch, Path("/home/me/project"))
    return {f"{group}.{item.key}": item.value for group, items in chosen.items() for item in items}


def reason(look: FirstLook, key: str, batch: BatchChoice = MEASURED) -> str:
    chosen = choose_settings(look, batch, Path("/home/me/project"))
    (found,) = (item.reason for group, items in chosen.items() for item in items if f"{group}.{item.key}" == key)
    return found


def test_few_photos_start_from_imagenet():
    assert settings_of(LOOK) == {
        "model.weights": "IMAGENET1K_V1",
        "data.root": "/data/photos",
        "data.image_size": 224,
        "data.batch_size": 16,
        "data.balance": "none",
        "optimizer.lr": 0.004,
        "trainer.epochs": 25,
        "trainer.patience": 5,
        "trainer.freeze_backbone_epochs": 3,
    }
    assert "8: 20, 16: 30" in reason(LOOK, "data.batch_size")
    assert "130 to 400 px, median 300" in reason(LOOK, "data.image_size")
    assert "about 8 seconds" in reason(LOOK, "trainer.epochs")
    assert "Not measured" in reason(LOOK, "data.batch_size", BatchChoice(16, {}))


@pytest.mark.parametrize(
    ("side", "size"), [(20, 32), (28, 32), (64, 64), (100, 96), (159, 128), (160, 224), (900, 224)]
)
def test_the_image_size_follows_the_photos(side, size):
    assert image_size(replace(LOOK, shorter_sides=(side,))) == size


def test_small_photos_get_a_model_for_small_ones():
    chosen = settings_of(replace(LOOK, shorter_sides=(32, 40, 48)))
    assert chosen["model.stem"] == "small"
    assert not {"model.weights", "trainer.freeze_backbone_epochs"} & set(chosen)
    assert chosen["optimizer.lr"] == 0.01


def test_classes_of_different_sizes_are_weighed():
    look = replace(LOOK, num_per_class={"ants": 150, "bees": 50})
    assert settings_of(look)["data.balance"] == "loss_weights"
    told = reason(look, "data.balance")
    assert "ants has 3 times as many photos (150) as bees (50)" in told
    # n / (K · n_c), as data.balance does it.
    assert "ants 0.667, bees 2" in told


def test_without_a_validation_split_a_share_is_set_aside():
    look = replace(LOOK, num_val=None)
    assert settings_of(look)["data.val_fraction"] == 0.2
    assert largest_batch_size(look) == 195 // 10


def test_unreadable_photos_do_not_end_the_run():
    assert settings_of(replace(LOOK, num_unreadable=1))["data.on_bad_image"] == "skip"


def test_photos_in_the_project_are_named_from_there():
    inside = replace(LOOK, places={"root": "/home/me/project/photos"})
    assert settings_of(inside)["data.root"] == "photos"
    assert path_from(Path("/home/me/project"), Path("/home/me/project/~x")) is None
    assert path_from(Path("/home/me/project"), Path("/home/me/other")) is None


@pytest.mark.parametrize("place", ["/data/${x}", "/data/\udcff"])
def test_a_path_that_no_experiment_can_hold_is_refused(place):
    with pytest.raises(UsageError, match="rename it"):
        settings_of(replace(LOOK, places={"root": place}))


def test_the_splits_in_words():
    assert photo_counts(LOOK) == "244 training and 153 validation photos of 2 classes"
    assert photo_counts(replace(LOOK, num_test=1)) == "244 training, 153 validation and 1 test photos of 2 classes"
    assert photo_counts(replace(LOOK, num_val=None)) == "244 training photos of 2 classes"
