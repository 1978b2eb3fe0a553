from __future__ import annotations

from collections.abc import Callable

import numpy as np

from runner.config.schema.data import DataConfig
from runner.data.source import Opened
from runner.data.sources.synthetic import open_synthetic


def opened(data_config: Callable[..., DataConfig], seed: int = 1, **values: int) -> Opened:
    return open_synthetic(data_config("synthetic", **values), seed)  # type: ignore[arg-type]


def test_sizes_and_labels(data_config: Callable[..., DataConfig]) -> None:
    splits = opened(data_config, num_classes=3, num_train=130, num_val=10, image_size=20)
    assert splits.classes == ("0", "1", "2")
    assert splits.test is None
    assert splits.val is not None
    assert (len(splits.train), len(splits.val)) == (130, 10)
    assert splits.train.labels.dtype == np.int64
    assert set(splits.train.labels.tolist()) == {0, 1, 2}
    assert splits.train.open(129).pixels().shape == (20, 20, 3)
    assert splits.train.open(129).pixels().dtype == np.uint8


def test_the_label_follows_from_the_picture(data_config: Callable[..., DataConfig]) -> None:
    splits = opened(data_config, num_train=200)
    assert splits.val is not None
    label_of = {splits.train.open(image).pixels().tobytes(): splits.train.labels[image] for image in range(200)}
    assert len(label_of) == 64
    for image in range(len(splits.val)):
        assert label_of[splits.val.open(image).pixels().tobytes()] == splits.val.labels[image]


def test_the_seed_makes_the_pictures(data_config: Callable[..., DataConfig]) -> None:
    first, again, other = (opened(data_config, seed).train.open(5).pixels().tolist() for seed in (1, 1, 2))
    assert first == again
    assert first != other


def test_loading_copies_nothing(data_config: Callable[..., DataConfig]) -> None:
    train = opened(data_config, num_train=100).train
    assert np.shares_memory(train.open(1).pixels(), train.open(65).pixels())
    assert train.describe(65) == "synthetic image 65 (picture 1)"


def test_more_classes_than_pictures(data_config: Callable[..., DataConfig]) -> None:
    splits = opened(data_config, num_classes=1000, num_train=500)
    assert len(splits.classes) == 1000
    assert splits.train.labels.max() == 63


def test_images_smaller_than_the_chequerboard(data_config: Callable[..., DataConfig]) -> None:
    assert opened(data_config, image_size=3).train.open(0).pixels().shape == (3, 3, 3)
