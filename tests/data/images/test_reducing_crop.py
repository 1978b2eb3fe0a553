from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image, ImageFilter
from pydantic import TypeAdapter

from runner.config.schema.transforms import RandomResizedCrop, Transform
from runner.data.images.decode import open_image
from runner.data.images.transforms import Pipeline, ReducingCrop, as_tensor

SIZE = 32
LIST = [{"name": "random_resized_crop", "size": SIZE}, {"name": "random_horizontal_flip"}]


def pipeline(entries: list[dict], *, reduces: bool) -> Pipeline:
    return Pipeline([TypeAdapter(Transform).validate_json(json.dumps(entry)) for entry in entries], reduces=reduces)


@pytest.fixture
def photograph(tmp_path: Path) -> str:
    """Blurred noise of many colours, 600 × 400 px."""
    noise = np.random.default_rng(0).integers(0, 256, (400, 600, 3), dtype=np.uint8)
    Image.fromarray(noise).filter(ImageFilter.GaussianBlur(6)).save(tmp_path / "x.jpg", quality=90)
    return str(tmp_path / "x.jpg")


def outcomes(path: str, entries: list[dict], *, reduces: bool) -> list[torch.Tensor]:
    prepared, stored = pipeline(entries, reduces=reduces), open_image(path)
    images = []
    for seed in range(40):
        torch.manual_seed(seed)
        images.append(prepared.finish(prepared.begin(stored)()))
    return images


def as_torchvision_does(path: str, entries: list[dict]) -> list[torch.Tensor]:
    """The same crops of the whole image."""
    transforms, image = pipeline(entries, reduces=False), as_tensor(open_image(path).pixels())
    images = []
    for seed in range(40):
        torch.manual_seed(seed)
        images.append(transforms(image))
    return images


def test_reduced_crops_differ_by_less_than_a_level_in_the_mean(photograph: str) -> None:
    whole, reduced = as_torchvision_does(photograph, LIST), outcomes(photograph, LIST, reduces=True)
    differences = [(a.int() - b.int()).abs().float().mean() for a, b in zip(whole, reduced, strict=True)]
    assert sum(difference > 0 for difference in differences) > 10
    assert max(differences) < 8
    assert sum(differences) / len(differences) < 2
    assert all(image.shape == (3, SIZE, SIZE) and image.dtype == torch.uint8 for image in reduced)


def test_crops_that_are_not_reduced_are_the_same(photograph: str) -> None:
    small = [{**LIST[0], "scale": [0.01, 0.01]}, LIST[1]]
    whole, reduced = as_torchvision_does(photograph, small), outcomes(photograph, small, reduces=True)
    assert all(torch.equal(a, b) for a, b in zip(whole, reduced, strict=True))


def test_without_reducing_all_crops_are_the_same(photograph: str) -> None:
    whole, cut = as_torchvision_does(photograph, LIST), outcomes(photograph, LIST, reduces=False)
    assert all(torch.equal(a, b) for a, b in zip(whole, cut, strict=True))


@pytest.mark.parametrize(
    "entries",
    [
        [{**LIST[0], "interpolation": "nearest"}],
        [{"name": "resize", "size": 64}, LIST[0]],
        [{"name": "random_horizontal_flip"}, LIST[0]],
    ],
)
def test_all_else_needs_all_pixels(photograph: str, entries: list[dict]) -> None:
    whole, reduced = as_torchvision_does(photograph, entries), outcomes(photograph, entries, reduces=True)
    assert all(torch.equal(a, b) for a, b in zip(whole, reduced, strict=True))


@pytest.mark.parametrize(
    ("height", "width", "reduction"),
    [(63, 500, 1), (127, 500, 1), (128, 500, 2), (500, 255, 2), (256, 256, 4), (512, 511, 4), (512, 512, 8)],
)
def test_twice_the_size_at_least(height: int, width: int, reduction: int) -> None:
    transform = RandomResizedCrop(name="random_resized_crop", size=SIZE)
    assert ReducingCrop(transform, reduces=True).reduction(height, width) == reduction
    assert ReducingCrop(transform, reduces=False).reduction(height, width) == 1


def test_other_formats_too(tmp_path: Path, photograph: str) -> None:
    with Image.open(photograph) as image:
        image.save(tmp_path / "x.png")
    path = str(tmp_path / "x.png")
    whole, reduced = as_torchvision_does(path, LIST), outcomes(path, LIST, reduces=True)
    assert all(torch.equal(a, b) for a, b in zip(whole, reduced, strict=True))
