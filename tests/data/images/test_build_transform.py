"""Each transform of the lists, on real tensors: what it does, and from where it draws."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
import torch
from PIL import Image
from pydantic import TypeAdapter, ValidationError

from runner.config.schema.data import DataConfig
from runner.config.schema.transforms import FIXED_NAMES, RANDOM_NAMES, Normalize, Transform
from runner.data.images.transforms import PackagedTransform, as_tensor, pipeline_of, train_transform, with_normalize
from runner.data.loader.loader import TrainBatches
from runner.data.sources.paths import resolve_paths
from runner.data.splits import open_splits

ADAPTER: TypeAdapter[Any] = TypeAdapter(Transform)
# Each with parameters under which no image of colours can stay as it is for long.
EXAMPLES: dict[str, dict[str, Any]] = {
    "resize": {"size": 24},
    "center_crop": {"size": 24},
    "pad": {"padding": [1, 2, 3, 4]},
    "grayscale": {},
    "random_resized_crop": {"size": 24},
    "random_crop": {"size": 24, "padding": 2},
    "random_horizontal_flip": {"p": 1.0},
    "random_vertical_flip": {"p": 1.0},
    "random_rotation": {"degrees": 45},
    "random_affine": {"degrees": 20, "translate": [0.1, 0.1], "scale": [0.8, 1.2], "shear": [-10, 10]},
    "random_perspective": {"p": 1.0},
    "color_jitter": {"hue": 0.2},
    "random_grayscale": {"p": 1.0},
    "random_solarize": {"p": 1.0},
    "random_posterize": {"p": 1.0, "bits": 2},
    "random_equalize": {"p": 1.0},
    "random_invert": {"p": 1.0},
    "gaussian_blur": {},
    "random_erasing": {"p": 1.0},
    "auto_augment": {},
    "rand_augment": {},
    "trivial_augment": {},
    "augmix": {},
}
# With p = 1 these do the same each time: what they draw is whether they act.
ACTS_OR_NOT = {name for name in EXAMPLES if EXAMPLES[name].get("p") == 1.0} - {"random_perspective", "random_erasing"}
KINDS = get_args(get_args(Transform)[0])


def entry(name: str, **values: Any) -> Any:
    return ADAPTER.validate_python({"name": name, **values}, strict=False)


def photo(side: int = 32) -> torch.Tensor:
    small = np.random.default_rng(3).integers(0, 256, (5, 5, 3), dtype=np.uint8)
    return as_tensor(np.array(Image.fromarray(small).resize((side, side + 8), Image.Resampling.BICUBIC)))


def drawn(name: str, seed: int, **values: Any) -> torch.Tensor:
    torch.manual_seed(seed)
    return pipeline_of([entry(name, **values)])(photo())


def same(one: torch.Tensor, other: torch.Tensor) -> bool:
    return one.shape == other.shape and torch.equal(one, other)


def test_every_transform_is_tried_here() -> None:
    names = {get_args(kind.model_fields["name"].annotation)[0] for kind in KINDS}
    assert names == set(EXAMPLES) | {"normalize", "custom"} == RANDOM_NAMES | set(FIXED_NAMES)


@pytest.mark.parametrize("name", EXAMPLES)
def test_each_transform_changes_pixels_and_keeps_shape_and_dtype(name: str) -> None:
    results = [drawn(name, seed, **EXAMPLES[name]) for seed in range(8)]
    assert all(result.dtype == torch.uint8 and result.shape[0] == 3 for result in results)
    # Of the policies, one operation is to leave the image as it is.
    assert sum(not same(result, photo()) for result in results) >= 6


@pytest.mark.parametrize("name", sorted(RANDOM_NAMES))
def test_random_transforms_draw_from_torchs_generator_only(name: str) -> None:
    values = {**EXAMPLES[name], "p": 0.5} if name in ACTS_OR_NOT else EXAMPLES[name]
    states = random.getstate(), np.random.get_state()[1].tobytes()
    results = [drawn(name, seed, **values) for seed in range(12)]
    assert len({result.numpy().tobytes() for result in results}) > 1
    random.seed(5)
    again = [drawn(name, seed, **values) for seed in range(12)]
    assert all(same(one, other) for one, other in zip(results, again, strict=True))
    random.setstate(states[0])
    assert np.random.get_state()[1].tobytes() == states[1]


@pytest.mark.parametrize("name", sorted(set(FIXED_NAMES) - {"normalize", "custom"}))
def test_fixed_transforms_draw_no_random_numbers(name: str) -> None:
    torch.manual_seed(4)
    state = torch.get_rng_state()
    pipeline_of([entry(name, **EXAMPLES[name])])(photo())
    assert torch.equal(torch.get_rng_state(), state)


def test_transforms_give_the_known_pixels() -> None:
    pixels = torch.tensor([[[10, 200]], [[20, 130]], [[30, 50]]], dtype=torch.uint8)

    def of(name: str, **values: Any) -> list[Any]:
        return pipeline_of([entry(name, **values)])(pixels).tolist()

    assert of("random_invert", p=1.0) == [[[245, 55]], [[235, 125]], [[225, 205]]]
    assert of("random_solarize", p=1.0, threshold=130) == [[[10, 55]], [[20, 125]], [[30, 50]]]
    assert of("random_posterize", p=1.0, bits=1) == [[[0, 128]], [[0, 128]], [[0, 0]]]
    assert of("random_vertical_flip", p=1.0) == pixels.tolist()
    assert of("random_horizontal_flip", p=1.0) == pixels.flip(2).tolist()
    assert of("pad", padding=[1, 0, 0, 0], fill=7)[0] == [[7, 10, 200]]
    assert of("pad", padding=[1, 0, 0, 0], mode="edge")[0] == [[10, 10, 200]]
    assert of("pad", padding=[1, 0, 0, 0], mode="reflect")[0] == [[200, 10, 200]]
    grey = of("grayscale")
    assert grey[0] == grey[1] == grey[2]


ALL_RANDOM = [
    {"name": name, **{key: value for key, value in EXAMPLES[name].items() if key != "p"}}
    for name in sorted(RANDOM_NAMES - {"random_crop", "random_resized_crop"})
]


@pytest.mark.parametrize("workers", [0, 2])
def test_each_epoch_draws_anew_and_each_run_the_same(
    tmp_path: Path, write_images: Callable[..., Path], data_config: Callable[..., DataConfig], workers: int
) -> None:
    write_images(tmp_path / "train", {"ant": 4, "bee": 4})
    lists = [*ALL_RANDOM, {"name": "random_resized_crop", "size": 16}]
    data = resolve_paths(data_config("folder", root=tmp_path, train_transforms=lists))
    batches = TrainBatches(
        source=open_splits(data, 1).train,
        preparation=train_transform(data),
        seed=1,
        batch_size=3,
        rank=0,
        world_size=1,
        last_batch="keep",
        workers=workers,
        pin_memory=False,
    )

    def by_image(epoch: int, own: TrainBatches = batches) -> dict[int, bytes]:
        stream = own.stream(epoch, 0, epoch + 1)
        pairs = [pair for batch in stream for pair in zip(batch.ids.tolist(), batch.images, strict=True)]
        return {image: pixels.numpy().tobytes() for image, pixels in pairs}

    first, second = by_image(0), by_image(1)
    assert all(first[image] != second[image] for image in first)
    assert by_image(0, replace(batches, workers=0, batch_size=4)) == first


@pytest.mark.parametrize(
    ("name", "values", "found"),
    [
        ("random_rotation", {"degrees": 0}, "greater than 0"),
        ("random_rotation", {"degrees": 181}, "less than or equal to 180"),
        ("random_affine", {}, "does nothing"),
        ("random_affine", {"scale": [1.2, 0.8]}, "smallest value comes first"),
        ("random_affine", {"translate": [1.5, 0]}, "less than or equal to 1"),
        ("random_perspective", {"distortion_scale": 2}, "less than or equal to 1"),
        ("random_erasing", {"scale": [0, 0.1]}, "greater than 0"),
        ("color_jitter", {"hue": 0.6}, "less than or equal to 0.5"),
        ("color_jitter", {"brightness": 0, "contrast": 0, "saturation": 0}, "does nothing"),
        ("gaussian_blur", {"kernel_size": 4}, "must be odd"),
        ("gaussian_blur", {"sigma": [0, 1]}, "greater than 0"),
        ("random_posterize", {"bits": 8}, "less than or equal to 7"),
        ("random_solarize", {"threshold": 300}, "less than or equal to 255"),
        ("auto_augment", {"policy": "mnist"}, "'imagenet', 'cifar10' or 'svhn'"),
        ("rand_augment", {"magnitude": 31}, "less than or equal to 30"),
        ("augmix", {"severity": 0}, "greater than or equal to 1"),
        ("pad", {"padding": [0, 0, 0, 0]}, "does nothing"),
        ("pad", {"padding": 1, "mode": "wrap"}, "'constant', 'edge' or 'reflect'"),
        ("random_grayscale", {"p": 1.1}, "less than or equal to 1"),
        ("grayscale", {"p": 1.0}, "Extra inputs"),
    ],
)
def test_parameters_have_ranges(name: str, values: dict[str, Any], found: str) -> None:
    with pytest.raises(ValidationError, match=found):
        entry(name, **values)


def test_a_normalize_entry_stands_for_data_normalize(data_config: Callable[..., DataConfig]) -> None:
    own = {"name": "normalize", "mean": [0.1, 0.2, 0.3], "std": [0.4, 0.5, 0.6]}
    crop = {"name": "center_crop", "size": 16}
    data = with_normalize(data_config("folder", train_transforms=[crop, own], eval_transforms=[crop, own]))
    assert data.normalize == Normalize(mean=(0.1, 0.2, 0.3), std=(0.4, 0.5, 0.6))
    plain = data_config("folder")
    assert with_normalize(plain) == plain
    # It acts once, on the device, whichever way it is written.
    pixels = photo().permute(1, 2, 0).numpy()
    with_entry = PackagedTransform(data.eval_transforms, data.normalize)(pixels)
    without = PackagedTransform(data.eval_transforms[:1], data.normalize)(pixels)
    assert torch.equal(with_entry, without)
    assert not torch.equal(with_entry, PackagedTransform(data.eval_transforms[:1], plain.normalize)(pixels))
