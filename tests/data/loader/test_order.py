from __future__ import annotations

import itertools

import numpy as np
import pytest

from runner.data.loader.order import Slice, TrainPlan, epoch_order, eval_batch, repeated_order


def plan(num_samples: int, batch_size: int, world_size: int = 1, last_batch: str = "keep") -> TrainPlan:
    return TrainPlan(
        num_samples=num_samples,
        batch_size=batch_size,
        world_size=world_size,
        last_batch=last_batch,  # type: ignore[arg-type]
    )


def sizes(epoch: TrainPlan) -> list[int]:
    return [piece.stop - piece.start for piece in epoch.batches_from(0)]


def test_orders_are_permutations_of_their_own() -> None:
    orders = [epoch_order(1000, seed, epoch) for seed, epoch in ((1, 0), (1, 1), (2, 0))]
    for order in orders:
        assert np.sort(order).tolist() == list(range(1000))
    assert not (orders[0] == orders[1]).all()
    assert not (orders[0] == orders[2]).all()
    assert (epoch_order(1000, 1, 0) == orders[0]).all()


@pytest.mark.parametrize(
    ("num_samples", "repeats", "apart"), [(60, 3, 4), (61, 3, 4), (10, 4, 16), (7, 2, 1), (5, 16, 2)]
)
def test_repeated_images_come_as_often_and_as_far_apart_as_asked(num_samples: int, repeats: int, apart: int) -> None:
    order = repeated_order(num_samples, 1, 3, repeats=repeats, apart=apart)
    assert len(order) == num_samples
    counts = np.bincount(order, minlength=num_samples)
    assert set(counts) - {0, repeats} <= set(range(repeats)), "only the last block is cut"
    assert np.count_nonzero(counts) >= num_samples // repeats
    assert counts.max() <= repeats
    assert order[:apart].tolist() == epoch_order(num_samples, 1, 3)[: min(apart, len(order))].tolist()
    whole = num_samples // (repeats * apart) * repeats * apart
    for image in set(order[:whole].tolist()):
        assert np.diff(np.flatnonzero(order[:whole] == image)).tolist() == [apart] * (repeats - 1)


def test_each_epoch_repeats_others() -> None:
    epochs = [set(repeated_order(300, 1, epoch, repeats=3, apart=8).tolist()) for epoch in (0, 1)]
    assert epochs[0] != epochs[1]


@pytest.mark.parametrize(
    ("num_samples", "batch_size", "world_size", "expected"),
    [
        (10, 5, 1, [5, 5]),
        (12, 5, 1, [5, 5, 2]),
        (11, 5, 1, [5, 6]),  # a single image can't stand alone
        (5, 5, 1, [5]),
        (6, 5, 1, [6]),
        (20, 5, 2, [10, 10]),
        (23, 5, 2, [10, 13]),  # would leave one image for one of the two ranks
        (24, 5, 2, [10, 10, 4]),
        (17, 2, 4, [8, 9]),
        (15, 2, 4, [15]),
        (16, 2, 4, [8, 8]),
        (7, 1, 3, [3, 4]),
    ],
)
def test_keep_uses_every_image(num_samples: int, batch_size: int, world_size: int, expected: list[int]) -> None:
    epoch = plan(num_samples, batch_size, world_size)
    assert sizes(epoch) == expected
    assert sum(expected) == num_samples
    assert epoch.batches_per_epoch == len(expected)


@pytest.mark.parametrize(
    ("num_samples", "batch_size", "world_size", "expected"),
    [(10, 5, 1, [5, 5]), (14, 5, 1, [5, 5]), (23, 5, 2, [10, 10]), (29, 5, 2, [10, 10])],
)
def test_drop_leaves_the_rest_out(num_samples: int, batch_size: int, world_size: int, expected: list[int]) -> None:
    epoch = plan(num_samples, batch_size, world_size, "drop")
    assert sizes(epoch) == expected
    assert epoch.batches_per_epoch == len(expected)
    assert epoch.is_over(sum(expected))


def test_batches_and_shares_tile_the_epoch_for_any_numbers() -> None:
    for num_samples, batch_size, world_size, last in itertools.product(
        range(1, 60), (1, 2, 3, 8), (1, 2, 3, 5), ("keep", "drop")
    ):
        if batch_size * world_size > num_samples:
            continue  # refused before training
        epoch = plan(num_samples, batch_size, world_size, last)
        position = 0
        for number, piece in enumerate(epoch.batches_from(0)):
            assert piece.start == number * batch_size * world_size
            shares = [piece.share(rank, world_size) for rank in range(world_size)]
            for share in shares:
                assert share.start == position
                position = share.stop
            lengths = [share.stop - share.start for share in shares]
            assert max(lengths) - min(lengths) <= 1
            assert min(lengths) >= min(batch_size, 2)
            assert max(lengths) <= batch_size + 2
            assert position == piece.stop
        assert number + 1 == epoch.batches_per_epoch
        assert position == num_samples or (last == "drop" and num_samples - position < batch_size * world_size)


def test_imagenet_on_256_gpus() -> None:
    epoch = plan(1_281_167, 64, 256)
    assert epoch.batches_per_epoch == 79
    assert sum(sizes(epoch)) == 1_281_167
    assert list(epoch.batches_from(0))[78].share(255, 256).stop == 1_281_167


def test_full_global_batches_do_not_depend_on_how_they_are_shared() -> None:
    one, four = plan(100, 8, 1), plan(100, 2, 4)
    assert list(one.batches_from(0))[:11] == list(four.batches_from(0))[:11]


@pytest.mark.parametrize("last_batch", ["keep", "drop"])
def test_an_epoch_goes_on_from_any_position(last_batch: str) -> None:
    epoch = plan(101, 8, 2, last_batch)
    whole = list(epoch.batches_from(0))
    for number, batch in enumerate(whole):
        assert list(epoch.batches_from(batch.start)) == whole[number:]
    # At a position of another world size, the rest of the epoch is still used exactly once.
    rest = list(epoch.batches_from(21))
    assert [batch.start for batch in rest] == [21, *(batch.stop for batch in rest[:-1])]
    assert rest[-1].stop == (101 if last_batch == "keep" else 101 - 80 % 16)


def test_evaluation_batches() -> None:
    assert [eval_batch(number, 10, 4) for number in range(3)] == [Slice(0, 4), Slice(4, 8), Slice(8, 10)]
