from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from pydantic import TypeAdapter
from torchvision import models
from torchvision.transforms import v2

from runner.config.schema.data import DataConfig
from runner.config.schema.transforms import Normalize, Transform
from runner.data.images.transforms import (
    Normalizer,
    PackagedTransform,
    as_tensor,
    eval_transform,
    follow_weights,
    pipeline_of,
    train_transform,
)

IMAGENET = Normalize(mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225))


def transforms(*entries: dict[str, Any]) -> tuple[Transform, ...]:
    adapter: TypeAdapter[Transform] = TypeAdapter(Transform)
    return tuple(adapter.validate_python(entry) for entry in entries)


def photo(height: int, width: int, seed: int = 0) -> np.ndarray:
    """Smooth random colours, as photographs have them."""
    small = np.random.default_rng(seed).integers(0, 256, (6, 6, 3), dtype=np.uint8)
    return np.array(Image.fromarray(small).resize((width, height), Image.Resampling.BICUBIC))


def apply(pixels: np.ndarray, *entries: dict[str, Any]) -> torch.Tensor:
    return pipeline_of(transforms(*entries))(as_tensor(pixels))


def test_no_transforms() -> None:
    pixels = photo(5, 7)
    result = apply(pixels)
    assert result.dtype == torch.uint8
    assert (result.permute(1, 2, 0).numpy() == pixels).all()


@pytest.mark.parametrize(("height", "width", "expected"), [(40, 60, (20, 30)), (60, 40, (30, 20)), (10, 10, (20, 20))])
def test_resize_sets_the_shorter_side(height: int, width: int, expected: tuple[int, int]) -> None:
    assert apply(photo(height, width), {"name": "resize", "size": 20}).shape == (3, *expected)


@pytest.mark.parametrize(
    ("size", "fraction", "side"), [(224, 0.875, 256), (224, 224 / 232, 232), (299, 299 / 342, 342)]
)
def test_resize_leaves_room_for_a_crop(size: int, fraction: float, side: int) -> None:
    entry = {"name": "resize", "size": size, "crop_fraction": fraction}
    assert apply(photo(30, 30), entry).shape == (3, side, side)


@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic", "nearest"])
def test_resize_agrees_with_pillow(interpolation: str) -> None:
    pixels = photo(90, 60)
    resampling = getattr(Image.Resampling, interpolation.upper())
    expected = np.array(Image.fromarray(pixels).resize((20, 30), resampling)).astype(int)
    result = apply(pixels, {"name": "resize", "size": 20, "interpolation": interpolation}).permute(1, 2, 0).numpy()
    assert np.abs(result - expected).max() <= 1


def test_center_crop() -> None:
    pixels = photo(10, 20)
    result = apply(pixels, {"name": "center_crop", "size": 6}).permute(1, 2, 0).numpy()
    assert (result == pixels[2:8, 7:13]).all()


def test_crops_of_smaller_images_are_padded_with_black() -> None:
    for name in ("center_crop", "random_crop"):
        result = apply(np.full((4, 4, 3), 255, np.uint8), {"name": name, "size": 8})
        assert result.shape == (3, 8, 8)
        assert int(result.sum()) == 4 * 4 * 3 * 255


def test_random_crop_pads_first() -> None:
    torch.manual_seed(0)
    pixels = np.full((8, 8, 3), 255, np.uint8)
    entry = {"name": "random_crop", "size": 8, "padding": 4}
    sums = {int(apply(pixels, entry).sum()) for _ in range(20)}
    assert len(sums) > 5
    assert max(sums) <= 8 * 8 * 3 * 255
    assert min(sums) >= 4 * 4 * 3 * 255


def test_random_resized_crop_uses_its_scale() -> None:
    # A left-to-right ramp: the range of what is left tells the width that was cut.
    pixels = np.repeat(np.arange(200, dtype=np.uint8)[np.newaxis, :, np.newaxis], 200, axis=0).repeat(3, axis=2)
    torch.manual_seed(0)
    entry = {"name": "random_resized_crop", "size": 50, "scale": [0.25, 0.25], "ratio": [1.0, 1.0]}
    for _ in range(10):
        result = pipeline_of(TypeAdapter(tuple[Transform, ...]).validate_json(f"[{as_json(entry)}]"))(as_tensor(pixels))
        assert result.shape == (3, 50, 50)
        assert 95 <= int(result.max()) - int(result.min()) <= 100


def as_json(entry: dict[str, Any]) -> str:
    import json

    return json.dumps(entry)


def test_flip() -> None:
    pixels = photo(5, 7)
    always = apply(pixels, {"name": "random_horizontal_flip", "p": 1.0}).permute(1, 2, 0).numpy()
    never = apply(pixels, {"name": "random_horizontal_flip", "p": 0.0}).permute(1, 2, 0).numpy()
    assert (always == pixels[:, ::-1]).all()
    assert (never == pixels).all()


def test_training_and_evaluation_have_lists_of_their_own(data_config: Callable[..., DataConfig]) -> None:
    data = data_config("folder")
    image = as_tensor(photo(40, 60))
    torch.manual_seed(0)
    train = train_transform(data)
    assert not torch.equal(train(image), train(image))
    evaluation = eval_transform(data)
    assert torch.equal(evaluation(image), evaluation(image))
    assert train(image).shape == evaluation(image).shape == (3, 16, 16)


def test_randomness_comes_from_torch_alone(data_config: Callable[..., DataConfig]) -> None:
    import random

    data = data_config(
        "folder",
        train_transforms=[
            {"name": "random_resized_crop", "size": 20},
            {"name": "random_crop", "size": 16, "padding": 2},
            {"name": "random_horizontal_flip"},
        ],
    )
    pipeline, image = train_transform(data), as_tensor(photo(40, 60))
    results = []
    for other_seed in (1, 2):
        random.seed(other_seed)
        np.random.seed(other_seed)
        torch.manual_seed(5)
        results.append(pipeline(image))
    assert torch.equal(*results)


@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
def test_the_normalizer_gives_the_bits_of_torchvision(memory_format: torch.memory_format) -> None:
    every_value = torch.arange(256, dtype=torch.uint8).view(1, 1, 16, 16).expand(2, 3, 16, 16)
    images = every_value.contiguous(memory_format=memory_format)
    before = images.clone()
    result = Normalizer(IMAGENET)(images)
    reference = v2.Compose([v2.ToDtype(torch.float32, scale=True), v2.Normalize(IMAGENET.mean, IMAGENET.std)])
    assert result.dtype == torch.float32
    assert torch.equal(result, reference(images))
    assert result.is_contiguous(memory_format=memory_format)
    assert torch.equal(images, before)


def test_the_normalizer_formula() -> None:
    result = Normalizer(Normalize(mean=(0.5, 0.0, 1.0), std=(0.5, 1.0, 2.0)))(
        torch.tensor([255, 0, 51], dtype=torch.uint8).view(3, 1, 1)
    )
    assert result.flatten().tolist() == pytest.approx([1.0, 0.0, -0.4])


def test_the_normalizer_adds_nothing_to_the_weights() -> None:
    assert Normalizer(IMAGENET).state_dict() == {}
    assert Normalizer(IMAGENET).to("meta").mean.device.type == "meta"


EVAL = ({"name": "resize", "size": 16, "crop_fraction": 0.875}, {"name": "center_crop", "size": 16})


def test_the_packaged_transform_gives_the_bits_of_evaluation() -> None:
    packaged = PackagedTransform(transforms(*EVAL), IMAGENET)
    images = [photo(40, 60, seed) for seed in range(4)]
    pipeline = pipeline_of(transforms(*EVAL))
    batch = torch.stack([pipeline(as_tensor(image)).permute(1, 2, 0) for image in images]).permute(0, 3, 1, 2)
    evaluated = Normalizer(IMAGENET)(batch)
    for image, expected in zip(images, evaluated, strict=True):
        result = packaged(Image.fromarray(image))
        assert result.dtype == torch.float32
        assert result.is_contiguous()
        assert torch.equal(result, expected)
        assert torch.equal(packaged(image), expected)
        assert torch.equal(packaged(torch.from_numpy(image).permute(2, 0, 1)), expected)
        assert torch.equal(packaged(torch.from_numpy(image).permute(2, 0, 1).contiguous()), expected)


def test_the_packaged_transform_takes_images_of_any_mode() -> None:
    packaged = PackagedTransform(transforms(*EVAL), IMAGENET)
    grey = photo(40, 60)[:, :, 0]
    expected = packaged(np.repeat(grey[:, :, np.newaxis], 3, axis=2))
    assert torch.equal(packaged(Image.fromarray(grey)), expected)
    assert torch.equal(packaged(grey), expected)
    assert torch.equal(packaged(torch.from_numpy(grey)[np.newaxis]), expected)
    assert torch.equal(packaged(grey.astype(np.uint16) * 257), expected)
    opaque = np.dstack([grey, grey, grey, np.full_like(grey, 255)])
    assert torch.equal(packaged(opaque), expected)


@pytest.mark.parametrize(
    "wrong",
    [torch.zeros(3, 8, 8), torch.zeros(8, 8, dtype=torch.uint8), torch.zeros(8, 8, 3, dtype=torch.uint8)],
)
def test_the_packaged_transform_refuses_other_tensors(wrong: torch.Tensor) -> None:
    with pytest.raises(TypeError, match=r"expected a uint8 tensor of shape \(1 or 3, height, width\)"):
        PackagedTransform(transforms(*EVAL), IMAGENET)(wrong)


def test_the_packaged_transform_pickles() -> None:
    packaged = PackagedTransform(transforms(*EVAL), IMAGENET)
    assert torch.equal(pickle.loads(pickle.dumps(packaged))(photo(30, 30)), packaged(photo(30, 30)))


@pytest.mark.parametrize(
    "weights",
    [
        models.ResNet18_Weights.IMAGENET1K_V1,
        models.ResNet50_Weights.IMAGENET1K_V2,
        models.EfficientNet_B0_Weights.IMAGENET1K_V1,
        models.Swin_V2_T_Weights.IMAGENET1K_V1,
        models.ConvNeXt_Tiny_Weights.IMAGENET1K_V1,
    ],
    ids=str,
)
def test_the_preset_of_weights_is_followed(data_config: Callable[..., DataConfig], weights: Any) -> None:
    preset = weights.transforms()
    data = follow_weights(
        data_config("folder", image_size=preset.crop_size[0]),
        resize_size=preset.resize_size[0],
        crop_size=preset.crop_size[0],
        mean=preset.mean,
        std=preset.std,
        interpolation=preset.interpolation.value,
    )
    image = photo(300, 420)
    ours = PackagedTransform(data.eval_transforms, data.normalize)(image)
    theirs = preset(torch.from_numpy(image).permute(2, 0, 1))
    assert ours.shape == theirs.shape
    # Equal up to one level of 255 in single pixels, where a resized value lies between two.
    assert (ours - theirs).abs().max() <= 1.01 / 255 / min(preset.std)


def test_following_weights_leaves_the_rest(data_config: Callable[..., DataConfig]) -> None:
    data = data_config("folder", image_size=32)
    followed = follow_weights(
        data, resize_size=256, crop_size=224, mean=[0.1] * 3, std=[0.2] * 3, interpolation="bicubic"
    )
    assert [entry.model_dump() for entry in followed.eval_transforms] == [
        {"name": "resize", "size": 32, "crop_fraction": 0.875, "interpolation": "bicubic"},
        {"name": "center_crop", "size": 32},
    ]
    assert followed.normalize.mean == (0.1, 0.1, 0.1)
    changed = {"eval_transforms", "normalize"}
    assert followed.model_dump(exclude=changed) == data.model_dump(exclude=changed)
    # The new config is as valid as the old one.
    assert type(followed).model_validate_json(followed.model_dump_json()) == followed
