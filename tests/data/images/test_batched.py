from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from pydantic import TypeAdapter

from runner.config.schema.data import DataConfig
from runner.config.schema.transforms import Transform
from runner.data.images.batched import BatchedTransforms, split_transforms
from runner.data.splits import inspect_data

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
def test_transforms_are_split_into_fixed_and_random_ones(
    entries: list, num_fixed: int, has_crop: bool, across: float, down: float
) -> None:
    found = split_transforms(transforms(*entries))
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
def test_a_transform_that_does_not_work_on_batches_is_named(entries: list, refused: str) -> None:
    found = split_transforms(transforms(*entries))
    assert not isinstance(found, BatchedTransforms)
    assert found.name == refused


def test_the_problem_is_found_before_training(
    tmp_path: Path, write_images: Callable[..., Path], data_config: Callable[..., DataConfig]
) -> None:
    write_images(tmp_path / "train", {"ant": 4, "bee": 4})
    (error,) = inspect_data(data_config("folder", train=str(tmp_path / "train"), cache="device"), 1).errors
    assert "data.cache = 'device'" in str(error) or "data.cache = device" in str(error)
    assert "can't do random_resized_crop of data.train_transforms for a whole batch at once" in str(error)
    assert "use data.cache=memory" in str(error)
