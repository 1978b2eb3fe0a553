from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
import torch
from pydantic import TypeAdapter
from torch import Tensor
from torchvision.transforms.v2 import functional

from runner.base.errors import DeviceError
from runner.config.schema.transforms import Transform
from runner.data.cache import on_device
from runner.data.cache.on_device import DeviceImages, load_onto
from runner.data.images.batched import BatchedTransforms, split_transforms
from runner.data.loader.batch import BadImage, Batch, Request

NUM_IMAGES, SIDE = 40, 12
CPU = torch.device("cpu")
PIXELS = torch.from_numpy(np.random.default_rng(0).integers(1, 256, (NUM_IMAGES, 3, SIDE, SIDE), dtype=np.uint8))
LABELS = np.arange(NUM_IMAGES, dtype=np.int64) % 7


def transforms(*entries: dict[str, Any]) -> BatchedTransforms:
    found = split_transforms(TypeAdapter(tuple[Transform, ...]).validate_json(json.dumps(entries)))
    assert isinstance(found, BatchedTransforms)
    return found


def batches(bad: frozenset[int] = frozenset()) -> list[Batch]:
    found = []
    for start in range(0, NUM_IMAGES, 16):
        asked = torch.arange(start, min(start + 16, NUM_IMAGES))
        ids = torch.tensor([image for image in asked.tolist() if image not in bad], dtype=torch.int64)
        skipped = tuple(BadImage(image, f"{image} is bad") for image in asked.tolist() if image in bad)
        found.append(Batch(PIXELS[ids], torch.from_numpy(LABELS)[ids], ids, asked, skipped))
    return found


def on_cpu(
    *entries: dict[str, Any], size: int = SIDE, seed: int = 1, bad: frozenset[int] = frozenset()
) -> DeviceImages:
    drawn = transforms(*entries)
    images, skipped = load_onto(CPU, batches(bad), drawn, NUM_IMAGES)
    return DeviceImages(images, LABELS, drawn, size=size, seed=seed, bad=skipped)


def request(*images: int, epoch: int = 0, first_draw: int | None = None) -> Request:
    return Request(epoch, np.array(images, dtype=np.int64), first_draw)


def places(image: Tensor, source: Tensor, size: int) -> list[tuple[int, int, bool, bool]]:
    """All crops and flips of a padded image that look like this one: top, left, flipped down, flipped across."""
    found = []
    for top in range(source.shape[1] - size + 1):
        for left in range(source.shape[2] - size + 1):
            crop = source[:, top : top + size, left : left + size]
            for down in (False, True):
                for across in (False, True):
                    axes = [axis for axis, is_flipped in ((1, down), (2, across)) if is_flipped]
                    if torch.equal(image, crop.flip(axes)):
                        found.append((top, left, down, across))
    return found


def test_without_random_transforms_images_are_as_they_are() -> None:
    batch = on_cpu().make(request(5, 0, 39))
    assert torch.equal(batch.images, PIXELS[[5, 0, 39]])
    assert batch.images.is_contiguous(memory_format=torch.channels_last)
    assert batch.images.dtype == torch.uint8
    assert batch.labels.tolist() == LABELS[[5, 0, 39]].tolist()
    assert batch.ids.tolist() == batch.asked.tolist() == [5, 0, 39]
    assert batch.bad == ()


@pytest.mark.parametrize(
    ("crop", "size"),
    [
        ({"size": 12, "padding": 2}, 12),
        ({"size": 8}, 8),
        ({"size": 12, "padding": 3, "mode": "reflect"}, 12),
        ({"size": 12, "padding": 3, "mode": "edge"}, 12),
        ({"size": 14, "fill": 9}, 14),
    ],
)
def test_crops_and_flips_are_those_of_the_padded_image(crop: dict[str, Any], size: int) -> None:
    made = on_cpu(
        {"name": "random_crop", **crop}, {"name": "random_horizontal_flip"}, {"name": "random_vertical_flip"}, size=size
    ).make(request(*range(NUM_IMAGES)))
    padding = crop.get("padding", 0)
    padding += max(size - SIDE - 2 * padding, 0)
    mode = crop.get("mode", "constant")
    padded = functional.pad(PIXELS, [padding] * 4, fill=crop.get("fill", 0), padding_mode=mode) if padding else PIXELS
    found = [places(image, source, size) for image, source in zip(made.images, padded, strict=True)]
    assert all(len(matches) == 1 for matches in found)
    tops, lefts, downs, acrosses = (set(column) for column in zip(*(matches[0] for matches in found), strict=True))
    assert downs == acrosses == {False, True}
    assert tops == lefts == set(range(padded.shape[-1] - size + 1))


def test_draws_are_even_and_independent() -> None:
    images = on_cpu({"name": "random_crop", "size": 8}, {"name": "random_horizontal_flip", "p": 0.3}, size=8)
    drawn = np.concatenate(
        [np.stack(images._drawn(epoch, np.arange(NUM_IMAGES, dtype=np.int64)), axis=1) for epoch in range(200)]
    )
    for column in (0, 1):
        assert np.bincount(drawn[:, column], minlength=5) / len(drawn) == pytest.approx([0.2] * 5, abs=0.02)
    assert drawn[:, 2].max() == 0
    assert drawn[:, 3].mean() == pytest.approx(0.3, abs=0.02)
    assert np.abs(np.corrcoef(drawn[:, [0, 1, 3]].T) - np.eye(3)).max() < 0.05


def test_a_draw_depends_on_seed_epoch_and_image_alone() -> None:
    entries = ({"name": "random_crop", "size": 6},)
    images = on_cpu(*entries, size=6)
    whole = images.make(request(*range(NUM_IMAGES))).images
    assert torch.equal(images.make(request(7, 3)).images, whole[[7, 3]])
    assert not torch.equal(images.make(request(7, 3, epoch=1)).images, whole[[7, 3]])
    assert not torch.equal(on_cpu(*entries, size=6, seed=2).make(request(*range(NUM_IMAGES))).images, whole)


def test_an_image_that_comes_twice_looks_different() -> None:
    images = on_cpu({"name": "random_crop", "size": 6}, size=6)
    made = images.make(request(*[3] * 20, first_draw=0)).images
    assert len({image.numpy().tobytes() for image in made}) > 10
    assert torch.equal(images.make(request(3, 3, first_draw=18)).images, made[18:])


def test_bad_images_are_skipped_and_named() -> None:
    images = on_cpu(bad=frozenset({3, 20}))
    batch = images.make(request(2, 3, 4))
    assert batch.ids.tolist() == [2, 4]
    assert batch.asked.tolist() == [2, 3, 4]
    assert batch.bad == (BadImage(3, "3 is bad"),)
    assert torch.equal(batch.images, PIXELS[[2, 4]])
    nothing = images.make(request(3, 20))
    assert nothing.images.shape == (0, 3, 0, 0)
    assert len(nothing.labels) == 0


def test_too_many_images_for_the_device_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(on_device, "available_memory", lambda: 1000)
    with pytest.raises(DeviceError, match=r"data\.cache=device: the 40 training images take"):
        on_cpu()


@pytest.mark.gpu
def test_batches_are_the_same_on_a_gpu() -> None:
    entries = ({"name": "random_crop", "size": 12, "padding": 2}, {"name": "random_horizontal_flip"})
    drawn, device = transforms(*entries), torch.device("cuda")
    images, bad = load_onto(device, batches(), drawn, NUM_IMAGES)
    on_gpu = DeviceImages(images, LABELS, drawn, size=SIDE, seed=1, bad=bad).make(request(5, 0, 39))
    expected = on_cpu(*entries).make(request(5, 0, 39))
    assert on_gpu.images.is_cuda
    assert on_gpu.labels.is_cuda
    assert torch.equal(on_gpu.images.cpu(), expected.images)
    assert torch.equal(on_gpu.labels.cpu(), expected.labels)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
@pytest.mark.parametrize("channels", [1, 4])
def test_rectangles_of_any_channels_are_padded_cropped_and_flipped(dtype: torch.dtype, channels: int) -> None:
    """Of 16 bits the images are float32 in [0, 1], and so is the grey of the padding."""
    generator = np.random.default_rng(0)
    pixels = torch.from_numpy(generator.integers(100, 256, (6, channels, 9, 14)).astype(np.uint8)).to(dtype)
    pixels = pixels / 255 if dtype == torch.float32 else pixels
    drawn = transforms(
        {"name": "random_crop", "size": [8, 16], "padding": 2, "fill": 51}, {"name": "random_horizontal_flip"}
    )
    ids = torch.arange(6)
    images, bad = load_onto(CPU, [Batch(pixels, ids, ids, ids, ())], drawn, 6)
    assert bad == []
    assert images.dtype == dtype
    assert images.shape == (6, 13, 18, channels)
    value = 51 / 255 if dtype == torch.float32 else 51
    assert torch.equal(images[:, 2:11, 2:16].permute(0, 3, 1, 2), pixels)
    torch.testing.assert_close(images[:, 0], torch.full_like(images[:, 0], value))
    made = DeviceImages(images, LABELS[:6], drawn, size=(8, 16), seed=1, bad=[]).make(request(4, 1)).images
    assert made.shape == (2, channels, 8, 16)
    for image, source in zip(made, images[[4, 1]].permute(0, 3, 1, 2), strict=True):
        crops = [
            source[:, top : top + 8, left : left + 16].flip(axes)
            for top in range(6)
            for left in range(3)
            for axes in ((), (2,))
        ]
        assert any(torch.equal(image, crop) for crop in crops)


def test_a_smaller_rectangle_is_padded_on_each_side_it_lacks() -> None:
    drawn = transforms({"name": "random_crop", "size": [12, 16]})
    ids = torch.arange(2)
    images, _ = load_onto(CPU, [Batch(PIXELS[:2], ids, ids, ids, ())], drawn, 2)
    assert images.shape == (2, SIDE, SIDE + 8, 3)
