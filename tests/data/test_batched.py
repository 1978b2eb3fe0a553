from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from pydantic import TypeAdapter

from runner.data.batched import BatchedTransforms, keeps_evaluation, parted, resolve_cache
from runner.data.splits import inspect
from runner.schema.data import DataConfig
from runner.schema.transforms import Transform

RESIZE, PAD, CROP = {"name": "resize", "size": 40}, {"name": "pad", "padding": 2}, {"name": "random_crop", "size": 32}
ACROSS, DOWN = {"name": "random_horizontal_flip"}, {"name": "random_vertical_flip", "p": 0.25}
NORMALIZE = {"name": "normalize", "mean": [0.5, 0.5, 0.5], "std": [0.5, 0.5, 0.5]}


def transforms(*entries: dict) -> tuple[Transform, ...]:
    return TypeAdapter(tuple[Transform, ...]).validate_json(json.dumps(entries))


@pytest.mark.parametrize(
    ("entries", "num_fixed", "has_crop", "across", "down"),
    [
        ([], 0, False, 0, 0),
        ([RESIZE, PAD], 2, False, 0, 0),
        ([RESIZE, CROP, ACROSS], 1, True, 0.5, 0),
        ([DOWN, CROP, NORMALIZE], 0, True, 0, 0.25),
        ([DOWN, DOWN], 0, False, 0, 0.375),
    ],
)
def test_in_two_parts(entries: list, num_fixed: int, has_crop: bool, across: float, down: float) -> None:
    found = parted(transforms(*entries))
    assert isinstance(found, BatchedTransforms)
    assert len(found.fixed) == num_fixed
    assert (found.crop is not None) is has_crop
    assert (found.horizontal_flip, found.vertical_flip) == (across, down)


@pytest.mark.parametrize(
    ("entries", "refused"),
    [
        ([{"name": "random_resized_crop", "size": 32}], "random_resized_crop"),
        ([CROP, CROP], "random_crop"),
        ([ACROSS, PAD], "pad"),
        ([RESIZE, {"name": "color_jitter", "brightness": 0.3}], "color_jitter"),
    ],
)
def test_what_can_not_be_done_is_named(entries: list, refused: str) -> None:
    found = parted(transforms(*entries))
    assert not isinstance(found, BatchedTransforms)
    assert found.name == refused


def test_it_is_said_before_training(
    tmp_path: Path, write_images: Callable[..., Path], data_config: Callable[..., DataConfig]
) -> None:
    write_images(tmp_path / "train", {"ant": 4, "bee": 4})
    (error,) = inspect(data_config("folder", train=str(tmp_path / "train"), cache="device"), 1).errors
    assert "data.cache = 'device'" in str(error) or "data.cache = device" in str(error)
    assert "can't do random_resized_crop of data.train_transforms for a whole batch at once" in str(error)
    assert "use data.cache=memory" in str(error)


@pytest.mark.parametrize(
    ("entries", "num_images", "chosen"),
    [
        ([RESIZE], 1000, "device"),
        ([], 1000, "device"),
        ([RESIZE], 349_526, "none"),
        ([RESIZE, CROP], 1000, "none"),
        ([ACROSS], 1000, "none"),
        ([{"name": "random_resized_crop", "size": 32}], 1000, "none"),
    ],
)
def test_auto_changes_no_pixel(
    data_config: Callable[..., DataConfig], entries: list, num_images: int, chosen: str
) -> None:
    data = data_config("folder", cache="auto", image_size=16, train_transforms=entries)
    assert resolve_cache(data, num_images) == chosen
    assert resolve_cache(data.model_copy(update={"cache": "memory"}), num_images) == "memory"
    assert not keeps_evaluation(data.model_copy(update={"cache": "none"}), num_images)
    assert keeps_evaluation(data.model_copy(update={"cache": "memory"}), num_images)
    assert keeps_evaluation(data, num_images) == (num_images <= 349_525)  # of 3 · 16² bytes, 256 MiB
