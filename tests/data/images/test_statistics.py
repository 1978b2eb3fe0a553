"""Mean and standard deviation of channels, against numpy on all pixels at once."""

from __future__ import annotations

import numpy as np
import pytest

from runner.data.images.statistics import ChannelStatistics, pixel_sums


def images(dtype: type, channels: int) -> list[np.ndarray]:
    """Images of several sizes; a large one must weigh more than a small one."""
    generator = np.random.default_rng(0)
    sizes = [(5, 7), (1, 1), (64, 3), (20, 20)]
    found = [generator.integers(0, 256, (channels, *size)) for size in sizes]
    return [(image / 255).astype(dtype) if dtype is np.float32 else image.astype(dtype) for image in found]


def statistics(some: list[np.ndarray]) -> dict:
    found = ChannelStatistics()
    for image in some:
        found.add(pixel_sums(image))
    return found.to_json()


@pytest.mark.parametrize("channels", [1, 3, 4])
@pytest.mark.parametrize("dtype", [np.uint8, np.float32])
def test_statistics_are_those_of_all_pixels(dtype: type, channels: int) -> None:
    some = images(dtype, channels)
    scale = 255 if dtype is np.uint8 else 1
    pixels = np.concatenate([image.reshape(channels, -1) for image in some], axis=1).astype(np.float64) / scale
    found = statistics(some)
    assert found["num_images"] == 4
    np.testing.assert_allclose(found["mean"], pixels.mean(axis=1), rtol=1e-12)
    np.testing.assert_allclose(found["std"], pixels.std(axis=1), rtol=1e-12)


@pytest.mark.parametrize("dtype", [np.uint8, np.float32])
def test_the_order_of_images_changes_no_digit(dtype: type) -> None:
    some = images(dtype, 3)
    assert statistics(some) == statistics(some[::-1])


def test_a_million_equal_pixels_have_no_deviation() -> None:
    found = statistics([np.full((1, 1000, 1000), 77, np.uint8), np.full((1, 3, 3), 77, np.uint8)])
    assert found["mean"] == [77 / 255]
    assert found["std"] == [0.0]
    shades = statistics([np.full((1, 300, 300), 0.1, np.float32)])
    assert shades["std"][0] < 1e-7
