from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from sklearn.utils.class_weight import compute_class_weight

from runner.data.images.stored import DecodedImage, StoredImage
from runner.data.images.transforms import as_tensor
from runner.data.loader.loader import TrainBatches
from runner.data.loader.order import balanced_order, class_weights, epoch_order, repeated_order

LABELS = np.repeat([0, 1, 2], [600, 60, 6]).astype(np.int64)


def test_the_weights_are_those_of_scikit_learn_and_their_mean_over_images_is_one():
    weights = class_weights(LABELS, 3)
    assert weights == pytest.approx(compute_class_weight("balanced", classes=np.arange(3), y=LABELS))
    assert weights[LABELS].mean() == pytest.approx(1)


def test_classes_without_images_do_not_count():
    weights = class_weights(np.array([0, 0, 0, 2], dtype=np.int64), 4)
    assert weights.tolist() == [4 / (2 * 3), 1, 4 / 2, 1]


def test_draws_are_even_over_classes_and_over_the_images_of_a_class():
    drawn = np.concatenate([balanced_order(LABELS, 1, epoch) for epoch in range(30)])
    assert len(drawn) == 30 * 666
    shares = np.bincount(LABELS[drawn]) / len(drawn)
    assert shares == pytest.approx([1 / 3] * 3, abs=0.015)
    rare = np.bincount(drawn, minlength=666)[660:]
    assert rare / rare.mean() == pytest.approx(np.ones(6), abs=0.15)


def test_draws_are_functions_of_seed_epoch_and_position():
    first = balanced_order(LABELS, 1, 0)
    assert first.dtype == np.int64
    assert np.array_equal(first, balanced_order(LABELS, 1, 0))
    assert not np.array_equal(first, balanced_order(LABELS, 1, 1))
    assert not np.array_equal(first, balanced_order(LABELS, 2, 0))


class Noisy:
    """Grey images that show their number; the transform adds noise."""

    labels = np.array([0] * 9 + [1], dtype=np.int64)

    def __len__(self) -> int:
        return 10

    def open(self, image: int) -> DecodedImage:
        return DecodedImage(np.full((4, 4, 3), image, dtype=np.uint8))

    def describe(self, image: int) -> str:
        return str(image)


class Noise:
    def begin(self, stored: StoredImage) -> Callable[[], torch.Tensor]:
        return lambda: as_tensor(stored.pixels())

    def finish(self, image: torch.Tensor) -> torch.Tensor:
        return image + torch.randint(0, 2, image.shape, dtype=torch.uint8) * 100


def batches(**changes) -> TrainBatches:
    given = {"seed": 1, "batch_size": 4, "rank": 0, "world_size": 1, "last_batch": "keep", "workers": 0}
    drawn = {} if "repeats" in changes else {"draws_balanced": True}
    return TrainBatches(Noisy(), Noise(), pin_memory=False, **drawn, **(given | changes))


def bytes_of(image: torch.Tensor) -> bytes:
    return image.numpy().tobytes()


def content(stream) -> list[tuple[int, bytes]]:
    return [pair for batch in stream for pair in zip(batch.ids.tolist(), map(bytes_of, batch.images), strict=True)]


def test_the_loader_draws_them_and_each_draw_looks_different():
    drawn = content(batches().stream(0, 0, 1))
    assert [image for image, _ in drawn] == balanced_order(Noisy.labels, 1, 0).tolist()
    assert len(drawn) == 10
    rare = [pixels for image, pixels in drawn if image == 9]
    assert len(rare) > 2
    assert len(set(rare)) == len(rare)


@pytest.mark.parametrize("workers", [0, 2])
def test_balanced_draws_do_not_depend_on_ranks_workers_or_the_start(workers):
    whole = content(batches().stream(0, 0, 2))
    ranks = [batches(batch_size=2, rank=rank, world_size=2, workers=workers).stream(0, 0, 2) for rank in range(2)]
    shared = [content([part]) for parts in zip(*ranks, strict=True) for part in parts]
    assert [pair for part in shared for pair in part] == whole
    assert content(batches(workers=workers).stream(1, 4, 2)) == whole[14:]
    assert batches().next_ids(0, 3, 4).tolist() == [image for image, _ in whole[3:7]]
    assert content([batches().preview(4)]) == whole[:4]


def test_without_balancing_each_image_comes_once():
    plain = TrainBatches(
        Noisy(), Noise(), seed=1, batch_size=4, rank=0, world_size=1, last_batch="keep", workers=0, pin_memory=False
    )
    assert [image for image, _ in content(plain.stream(0, 0, 1))] == epoch_order(10, 1, 0).tolist()


@pytest.mark.parametrize("workers", [0, 2])
def test_repeated_images_look_different_and_do_not_depend_on_workers_or_the_start(workers):
    whole = content(batches(repeats=3, batch_size=2).stream(0, 0, 2))
    assert [image for image, _ in whole[:10]] == repeated_order(10, 1, 0, repeats=3, apart=2).tolist()
    assert len(set(whole)) == len(whole), "no draw of an image is like another"
    parts = [batches(repeats=3, batch_size=2, rank=rank, world_size=2, workers=workers) for rank in (0, 1)]
    ranks = [part.stream(0, 0, 2) for part in parts]
    shared = [content([part]) for parts in zip(*ranks, strict=True) for part in parts]
    assert [pair for part in shared for pair in part] == whole
    assert content(batches(repeats=3, batch_size=2, workers=workers).stream(1, 4, 2)) == whole[14:]
