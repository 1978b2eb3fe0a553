from __future__ import annotations

import numpy as np
import pytest
import torch

from runner.evaluation.image_features import FeatureCounter, ImageFeatures, profile_of
from runner.evaluation.per_image import NUM_LEVELS, brightness_levels
from runner.run.image_profile import FEATURES


def features(brightness: list[float], width: list[int] | None = None) -> ImageFeatures:
    count = len(brightness)
    return ImageFeatures(
        brightness=np.array(brightness),
        width=np.array(width or [640] * count),
        height=np.full(count, 480),
        confidence=np.linspace(0.5, 1, count),
        predicted=np.arange(count) % 3,
    )


def test_bins_hold_a_tenth_each_and_what_lies_outside_has_its_own():
    profile = profile_of(features(np.linspace(0.2, 0.8, 200).tolist()), 3)
    assert profile.brightness.counts == (0, *[20] * 10, 0)
    counter = FeatureCounter(profile)
    counter.add(features([0.1, 0.2, 0.8, 0.9]))
    assert counter.counts["brightness"].tolist() == [1, 1, *[0] * 8, 1, 1]


def test_one_size_is_one_bin_between_two():
    profile = profile_of(features([0.5] * 4), 3)
    assert profile.width.counts == (0, 4, 0)
    counter = FeatureCounter(profile)
    counter.add(features([0.5] * 4, [639, 640, 640, 641]))
    assert counter.counts["width"].tolist() == [1, 2, 1]


def test_batches_add_up_to_the_profile_itself():
    images = np.random.default_rng(0).uniform(0, 1, 101).tolist()
    profile = profile_of(features(images), 5)
    counter = FeatureCounter(profile)
    whole = features(images)
    for part in (slice(0, 40), slice(40, 40), slice(40, 101)):
        counter.add(ImageFeatures(**{name: values[part] for name, values in vars(whole).items()}))
    assert counter.num_images == 101
    assert {name: tuple(counts.tolist()) for name, counts in counter.counts.items()} == {
        name: profile.counts_of(name) for name in FEATURES
    }


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
def test_brightness_is_the_mean_of_the_pixels(dtype):
    levels = torch.randint(0, 256, (4, 3, 17, 5), generator=torch.Generator().manual_seed(0))
    levels[0], levels[1] = 0, 255
    images = levels.to(torch.uint8) if dtype == torch.uint8 else (levels * 257) / 65535
    found = brightness_levels(images) / NUM_LEVELS
    assert found[:2].tolist() == [0, 1]
    torch.testing.assert_close(found, levels.float().mean(dim=(1, 2, 3)) / 255, atol=1e-5, rtol=0)
    assert torch.equal(brightness_levels(images.to(memory_format=torch.channels_last)), brightness_levels(images))
