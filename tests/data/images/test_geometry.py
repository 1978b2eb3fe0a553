from __future__ import annotations

from collections.abc import Callable
from typing import Any, get_args

import pytest
import torchvision

from runner.config.schema.data import DataConfig, TorchvisionDatasetName
from runner.data.images.geometry import find_size_problems, scaled_transforms

RESIZE: dict[str, Any] = {"name": "resize", "size": 16}
CENTER: dict[str, Any] = {"name": "center_crop", "size": 16}
CROP: dict[str, Any] = {"name": "random_crop", "size": 16}
RESIZED_CROP: dict[str, Any] = {"name": "random_resized_crop", "size": 16}
FLIP: dict[str, Any] = {"name": "random_horizontal_flip"}
SAME_SIZE: list[dict[str, Any]] = [
    {"name": "random_rotation", "degrees": 5},
    {"name": "random_affine", "degrees": 5},
    {"name": "random_perspective"},
    {"name": "color_jitter"},
    {"name": "rand_augment"},
    {"name": "augmix"},
    {"name": "random_erasing"},
]
LARGER: dict[str, Any] = {"name": "resize", "size": 16, "crop_fraction": 0.5}


@pytest.mark.parametrize(
    ("source", "transforms"),
    [
        ("folder", [RESIZED_CROP, FLIP]),
        ("folder", [RESIZE, CENTER]),
        ("folder", [FLIP, LARGER, CROP]),
        ("folder", [CENTER]),
        ("folder", [CENTER, LARGER, {**RESIZE}]),
        ("digits", [RESIZE]),
        ("digits", [RESIZE, FLIP]),
        ("torchvision", [RESIZE]),
        ("synthetic", []),
        ("synthetic", [FLIP]),
        ("folder", [CENTER, *SAME_SIZE]),
        ("folder", [*SAME_SIZE, RESIZED_CROP]),
        ("csv", [RESIZE, CENTER]),
        ("digits", [{"name": "pad", "padding": 4}]),
        ("digits", [{"name": "pad", "padding": [8, 0, 0, 8]}]),
        ("digits", [{"name": "pad", "padding": 7, "mode": "reflect"}, CENTER]),
        ("folder", [RESIZE, {"name": "random_crop", "size": 16, "padding": 4, "mode": "reflect"}]),
    ],
)
def test_pipelines_that_fit(data_config: Callable[..., DataConfig], source: str, transforms: list[Any]) -> None:
    assert find_size_problems(data_config(source, train_transforms=transforms, eval_transforms=transforms)) == []


@pytest.mark.parametrize(
    ("source", "transforms", "found"),
    [
        ("folder", [], "gives images of different sizes, but the model sees 16 × 16 (data.image_size)"),
        ("folder", [FLIP], "different sizes"),
        ("folder", [RESIZE], "shorter side is 16 pixels and whose longer side varies"),
        ("folder", [CENTER, LARGER], "gives images of 32 × 32 pixels"),
        ("folder", [{**RESIZED_CROP, "size": 8}], "gives images of 8 × 8 pixels"),
        ("digits", [], "gives images of 8 × 8 pixels"),
        ("torchvision", [FLIP], "gives images of 28 × 28 pixels"),
        ("synthetic", [LARGER], "gives images of 32 × 32 pixels"),
        ("digits", [{"name": "pad", "padding": 3}], "gives images of 14 × 14 pixels"),
        ("digits", [{"name": "pad", "padding": [8, 0, 0, 0]}], "gives images of 8 × 16 pixels (height × width)"),
        ("folder", [RESIZE, {"name": "pad", "padding": [8, 0, 0, 0]}], "different sizes"),
        ("folder", [RESIZE, {"name": "pad", "padding": 2}], "shorter side is 20 pixels"),
    ],
)
def test_pipelines_that_do_not_fit(
    data_config: Callable[..., DataConfig], source: str, transforms: list[Any], found: str
) -> None:
    train, evaluation = find_size_problems(data_config(source, train_transforms=transforms, eval_transforms=transforms))
    assert (train.key, evaluation.key) == ("data.train_transforms", "data.eval_transforms")
    assert found in train.message
    assert train.hint == ("end the list with {name: center_crop, size: 16} or {name: random_resized_crop, size: 16}")
    assert evaluation.hint == "end the list with {name: center_crop, size: 16}"


@pytest.mark.parametrize(
    ("source", "transforms", "found"),
    [
        ("digits", [{"name": "pad", "padding": 8, "mode": "reflect"}, CENTER], "here 8 to a shorter side of 8 pixels"),
        ("folder", [{"name": "pad", "padding": [0, 1, 0, 0], "mode": "reflect"}, CENTER], "of unknown size"),
        ("folder", [{**CROP, "mode": "reflect"}], "here 16 to a shorter side of unknown size"),
        ("digits", [{**CROP, "mode": "reflect", "size": 32}, CENTER], "here 24 to a shorter side of 8 pixels"),
    ],
)
def test_reflecting_more_pixels_than_an_image_has_is_refused(
    data_config: Callable[..., DataConfig], source: str, transforms: list[Any], found: str
) -> None:
    (problem,) = find_size_problems(data_config(source, train_transforms=transforms, eval_transforms=[CENTER]))
    assert problem.key == "data.train_transforms.0.mode"
    assert found in problem.message


def test_each_list_is_judged_by_itself(data_config: Callable[..., DataConfig]) -> None:
    (problem,) = find_size_problems(data_config("folder", eval_transforms=[RESIZE]))
    assert problem.key == "data.eval_transforms"


@pytest.mark.parametrize("name", get_args(TorchvisionDatasetName))
def test_torchvision_data_sets_are_judged_as_what_they_are(data_config: Callable[..., DataConfig], name: str) -> None:
    assert hasattr(torchvision.datasets, name)
    data = data_config("torchvision", name=name, train_transforms=[RESIZE], eval_transforms=[RESIZE, CENTER])
    is_square = name in {"CIFAR10", "CIFAR100", "EuroSAT", "FashionMNIST", "KMNIST", "MNIST", "STL10", "SVHN"}
    assert len(find_size_problems(data)) == (0 if is_square else 1)


SMALLER = [{"epochs": 1, "image_size": 8}]


@pytest.mark.parametrize(
    ("source", "transforms", "size", "expected"),
    [
        ("folder", [RESIZED_CROP, FLIP], 8, [8]),
        ("folder", [{**RESIZE, "size": 20}, CROP], 8, [10, 8]),
        ("folder", [{**CENTER, "size": [16, 16]}], [8, 12], [(8, 12)]),
        ("folder", [RESIZE, {**CENTER, "size": [16, 16]}], [8, 12], [12, (8, 12)]),
        ("digits", [RESIZE, CROP, {"name": "pad", "padding": 1}, CENTER], 8, [8, 8, 8]),
    ],
)
def test_sizes_of_transforms_follow_smaller_images(
    data_config: Callable[..., DataConfig], source: str, transforms: list[Any], size: Any, expected: list[Any]
) -> None:
    entries = [{"epochs": 1, "image_size": size}]
    data = data_config(source, train_transforms=transforms, progressive_resizing=entries)
    assert find_size_problems(data) == []
    found = scaled_transforms(data, data.progressive_resizing[0].image_size)
    assert [entry.size for entry in found if hasattr(entry, "size")] == expected


@pytest.mark.parametrize(
    ("source", "transforms", "found"),
    [
        ("digits", [{**RESIZE, "size": 12}, {"name": "pad", "padding": 2}], "give images of 10 × 10, not of 8 × 8"),
        ("synthetic", [], "give images of 16 × 16, not of 8 × 8"),
    ],
)
def test_transforms_that_do_not_follow_are_refused(
    data_config: Callable[..., DataConfig], source: str, transforms: list[Any], found: str
) -> None:
    (problem,) = find_size_problems(data_config(source, train_transforms=transforms, progressive_resizing=SMALLER))
    assert problem.key == "data.progressive_resizing.0.image_size"
    assert found in problem.message
