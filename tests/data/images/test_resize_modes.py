"""data.resize, data.fill and rectangles: sizes, what stays of an image, and what comes beside it."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from pydantic import TypeAdapter
from torchvision.transforms import v2

from runner.config.schema.data import DataConfig
from runner.config.schema.transforms import CenterCrop, Resize, Transform
from runner.data.images.geometry import covered_size, find_size_problems, resized_size
from runner.data.images.stored import DecodedImage, InputFormat
from runner.data.images.transforms import ReducingCrop, eval_transform, follow_weights, pipeline_of, train_transform

ENTRY: TypeAdapter[Any] = TypeAdapter(Transform)
RESIZE, CROP = {"name": "resize", "size": [16, 24]}, {"name": "center_crop", "size": [16, 24]}


def entry(name: str, **values: Any) -> Any:
    return ENTRY.validate_json(json.dumps({"name": name, **values}))


def resized(image: torch.Tensor, size: Any, mode: Any, fill: int = 0, **values: Any) -> torch.Tensor:
    form = InputFormat(channels=image.shape[0], resize=mode, fill=fill)  # type: ignore[arg-type]
    return pipeline_of([entry("resize", size=size, **values)], form)(image)


@pytest.mark.parametrize(
    ("height", "width", "cover", "fit"),
    [
        (16, 24, (16, 24), (16, 24)),
        (32, 48, (16, 24), (16, 24)),
        (16, 16, (24, 24), (16, 16)),
        (100, 10, (240, 24), (16, 2)),
        (10, 100, (16, 160), (2, 24)),
        (1, 1, (24, 24), (16, 16)),
        (1, 1000, (16, 16000), (1, 24)),
        (3000, 1, (72000, 24), (16, 1)),
        (7, 11, (16, 25), (15, 24)),
    ],
)
def test_sizes_of_all_aspect_ratios(height: int, width: int, cover: tuple[int, int], fit: tuple[int, int]) -> None:
    resize = entry("resize", size=[16, 24])
    assert resized_size(resize, "crop", height, width) == cover
    assert resized_size(resize, "letterbox", height, width) == fit
    assert resized_size(resize, "squash", height, width) == (16, 24)


@pytest.mark.parametrize(("height", "width"), [(20, 30), (30, 20), (7, 11), (224, 224), (33, 100)])
@pytest.mark.parametrize("fraction", [1.0, 0.875])
def test_the_size_after_a_plain_resize_is_that_of_torchvision(height: int, width: int, fraction: float) -> None:
    resize = entry("resize", size=32, crop_fraction=fraction)
    image = torch.zeros(3, height, width, dtype=torch.uint8)
    expected = v2.Resize(round(32 / fraction), antialias=True)(image).shape[1:]
    assert resized_size(resize, "crop", height, width) == tuple(expected)
    assert resized(image, 32, "crop", crop_fraction=fraction).shape[1:] == expected


@pytest.mark.parametrize(("height", "width"), [(40, 10), (10, 40), (1, 300), (300, 1), (5, 5), (16, 24)])
@pytest.mark.parametrize("channels", [1, 3, 4])
def test_a_letterbox_shows_all_of_the_image_in_the_middle(height: int, width: int, channels: int) -> None:
    image = torch.full((channels, height, width), 200, dtype=torch.uint8)
    found = resized(image, [16, 24], "letterbox", fill=7, crop_fraction=0.5)
    assert found.shape == (channels, 16, 24)
    shown_height, shown_width = resized_size(entry("resize", size=[16, 24]), "letterbox", height, width)
    shown = (found == 200).all(dim=0)
    assert int(shown.sum()) == shown_height * shown_width
    assert ((found == 7).all(dim=0) | shown).all()
    rows, columns = shown.any(dim=1).nonzero()[:, 0], shown.any(dim=0).nonzero()[:, 0]
    assert rows[0] - (15 - rows[-1]) in (-1, 0)
    assert columns[0] - (23 - columns[-1]) in (-1, 0)


def test_squashing_does_not_keep_the_aspect_ratio() -> None:
    image = torch.zeros(3, 40, 10, dtype=torch.uint8)
    image[:, 20:] = 250
    found = resized(image, 20, "squash", interpolation="nearest")
    assert found.shape == (3, 20, 20)
    assert (found[:, :10] == 0).all()
    assert (found[:, 10:] == 250).all()


def test_a_cover_leaves_nothing_to_fill() -> None:
    image = torch.full((3, 9, 50), 200, dtype=torch.uint8)
    form = InputFormat(fill=7)
    found = pipeline_of([entry("resize", size=[16, 24], crop_fraction=0.8), entry("center_crop", size=[16, 24])], form)
    assert (found(image) == 200).all()
    assert found(image).shape == (3, 16, 24)


@pytest.mark.parametrize("mode", ["crop", "letterbox", "squash"])
def test_16_bits_stay_in_their_range(mode: Any) -> None:
    generator = np.random.default_rng(0)
    steps = np.where(generator.random((31, 9, 1)) < 0.5, 0, 65535).astype(np.uint16)
    form = InputFormat(channels=1, bit_depth=16, resize=mode, fill=51)
    for name in ("bilinear", "bicubic"):
        transforms = [entry("resize", size=[40, 40], interpolation=name), entry("center_crop", size=[40, 40])]
        found = pipeline_of(transforms, form).begin(DecodedImage(steps))()
        assert found.dtype == torch.float32
        assert (found.min(), found.max()) == (0, 1)
        assert mode != "letterbox" or torch.isclose(found[0, 0, 0], torch.tensor(51 / 255))
    crop = entry("random_resized_crop", size=[20, 30], interpolation="bicubic", scale=[1.0, 1.0])
    cut = ReducingCrop(crop, reduces=True).begin(DecodedImage(steps))()
    assert cut.shape == (1, 20, 30)
    assert (cut.min(), cut.max()) == (0, 1)


FILLED = [
    ("pad", {"padding": 3, "fill": 204}),
    ("random_crop", {"size": 12, "padding": 8, "fill": 204}),
    ("random_rotation", {"degrees": 45, "fill": 204, "interpolation": "nearest"}),
    ("random_affine", {"degrees": 45, "fill": 204, "interpolation": "nearest"}),
    ("random_perspective", {"p": 1.0, "fill": 204, "interpolation": "nearest"}),
    ("random_erasing", {"p": 1.0, "value": 204}),
]


@pytest.mark.parametrize(("name", "values"), FILLED, ids=[name for name, _ in FILLED])
def test_greys_of_transforms_mean_the_same_with_16_bits(name: str, values: dict[str, Any]) -> None:
    found = {}
    for form in (InputFormat(channels=1), InputFormat(channels=1, bit_depth=16)):
        torch.manual_seed(3)
        image = torch.zeros(1, 12, 12, dtype=torch.uint8 if form.bit_depth == 8 else torch.float32)
        found[form.bit_depth] = pipeline_of([entry(name, **values)], form)(image)
    assert (found[8] == 204).any()
    torch.testing.assert_close(found[16] * 255, found[8].float())


def test_solarize_turns_at_the_same_grey_with_16_bits() -> None:
    greys = torch.arange(256, dtype=torch.uint8).view(1, 16, 16)
    step = entry("random_solarize", threshold=100, p=1.0)
    eight = pipeline_of([step], InputFormat(channels=1))(greys)
    sixteen = pipeline_of([step], InputFormat(channels=1, bit_depth=16))(greys.float() / 255)
    torch.testing.assert_close(sixteen * 255, eight.float())


@pytest.mark.parametrize("channels", [1, 3])
def test_grayscale_keeps_the_number_of_channels(channels: Any) -> None:
    image = torch.randint(0, 256, (channels, 8, 8), dtype=torch.uint8)
    assert pipeline_of([entry("grayscale")], InputFormat(channels=channels))(image).shape == (channels, 8, 8)


@pytest.mark.parametrize(
    ("values", "found"),
    [
        ({"resize": "letterbox", "eval_transforms": [RESIZE]}, None),
        ({"resize": "squash", "eval_transforms": [RESIZE]}, None),
        ({"eval_transforms": [RESIZE, CROP]}, None),
        ({"eval_transforms": [{"name": "random_crop", "size": [16, 24], "padding": 2}]}, None),
        ({"eval_transforms": [RESIZE]}, "different sizes"),
        (
            {"resize": "letterbox", "eval_transforms": [{"name": "resize", "size": 16}]},
            "gives images of 16 × 16 pixels",
        ),
        ({"eval_transforms": [{"name": "center_crop", "size": [24, 16]}]}, "24 × 16 pixels (height × width)"),
        ({"resize": "squash", "eval_transforms": [RESIZE, {"name": "pad", "padding": [1, 0, 0, 0]}]}, "16 × 25 pixels"),
    ],
)
def test_rectangles_are_checked(
    data_config: Callable[..., DataConfig], values: dict[str, Any], found: str | None
) -> None:
    fitting = {"train_transforms": [{"name": "random_resized_crop", "size": [16, 24]}]}
    problems = find_size_problems(data_config("folder", image_size=[16, 24], **fitting, **values))
    if found is None:
        assert problems == []
        return
    (problem,) = problems
    assert found in problem.message
    assert "but the model sees 16 × 24 (data.eval_image_size)" in problem.message
    assert problem.hint == "end the list with {name: center_crop, size: [16, 24]}"


def test_mirrored_padding_of_rectangles_is_checked(data_config: Callable[..., DataConfig]) -> None:
    mirrored = {"name": "random_crop", "size": [16, 24], "padding": 4, "mode": "reflect"}
    resize = {"name": "resize", "size": [16, 24]}
    data = {"image_size": [16, 24], "eval_transforms": [RESIZE, CROP], "resize": "squash"}
    assert find_size_problems(data_config("folder", train_transforms=[resize, mirrored], **data)) == []
    small = {"name": "resize", "size": [4, 24]}
    (problem,) = find_size_problems(data_config("folder", train_transforms=[small, mirrored], **data))
    assert "here 4 to a shorter side of 4 pixels" in problem.message


def test_the_modes_reach_training_evaluation_and_followed_weights(data_config: Callable[..., DataConfig]) -> None:
    data = data_config(
        "folder", image_size=[16, 24], resize="letterbox", fill=9, train_transforms=[RESIZE], eval_transforms=[RESIZE]
    )
    image = torch.full((3, 40, 10), 200, dtype=torch.uint8)
    followed = follow_weights(
        data, resize_size=256, crop_size=224, mean=[0.1] * 3, std=[0.2] * 3, interpolation="bilinear"
    )
    for pipeline in (train_transform(data), eval_transform(data), eval_transform(followed)):
        assert pipeline(image).shape == (3, 16, 24)
        assert int((pipeline(image)[0] == 200).sum()) == 16 * 4
    assert [type(step) for step in followed.eval_transforms] == [Resize, CenterCrop]
    assert followed.normalize.mean == (0.1, 0.1, 0.1)
    grey = data.model_copy(update={"channels": 1, "normalize": followed.normalize.model_copy(update={"mean": (0.4,)})})
    followed = follow_weights(
        grey, resize_size=256, crop_size=224, mean=[0.1] * 3, std=[0.2] * 3, interpolation="bilinear"
    )
    assert followed.normalize.mean == (0.4,)


def test_crop_fraction_of_a_rectangle() -> None:
    assert covered_size(entry("resize", size=[70, 140], crop_fraction=0.875)) == (80, 160)
    assert covered_size(entry("resize", size=224, crop_fraction=0.875)) == 256


@pytest.mark.parametrize(
    ("height", "width", "reduction"), [(32, 48, 1), (64, 96, 2), (64, 95, 1), (63, 96, 1), (256, 384, 8), (256, 100, 2)]
)
def test_a_jpeg_is_reduced_as_far_as_both_sides_allow(height: int, width: int, reduction: int) -> None:
    crop = ReducingCrop(entry("random_resized_crop", size=[16, 24]), reduces=True)
    assert crop.reduction(height, width) == reduction
