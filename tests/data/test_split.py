from __future__ import annotations

import numpy as np
import pytest

from runner.data.split import stratified_split


def make_labels(*counts: int) -> np.ndarray:
    labels = np.repeat(np.arange(len(counts)), counts)
    return np.random.default_rng(0).permutation(labels)


def test_each_class_gives_its_share() -> None:
    labels = make_labels(100, 50, 10)
    train, val = stratified_split(labels, 0.2, 1, ("a", "b", "c"))
    assert np.bincount(labels[val]).tolist() == [20, 10, 2]
    assert np.bincount(labels[train]).tolist() == [80, 40, 8]
    assert sorted([*train, *val]) == list(range(160))
    assert train.tolist() == sorted(train.tolist())
    assert val.tolist() == sorted(val.tolist())


@pytest.mark.parametrize("fraction", [0.001, 0.2, 0.5, 0.999])
def test_small_classes_keep_an_image_on_each_side(fraction: float) -> None:
    labels = make_labels(1, 2, 3, 0)
    train, val = stratified_split(labels, fraction, 1, ("a", "b", "c", "d"))
    assert np.bincount(labels[val], minlength=4)[0] == 0
    for label in (1, 2):
        assert (labels[val] == label).any()
        assert (labels[train] == label).any()
    assert len(train) + len(val) == 6


def test_the_seed_decides() -> None:
    labels = make_labels(50, 50)
    splits = [stratified_split(labels, 0.2, seed, ("a", "b"))[1].tolist() for seed in (1, 1, 2)]
    assert splits[0] == splits[1]
    assert splits[0] != splits[2]


def test_a_class_does_not_depend_on_the_others() -> None:
    few = np.repeat([0, 1], [30, 40])
    more = np.repeat([0, 1, 2], [5, 30, 70])
    _, val_few = stratified_split(few, 0.2, 1, ("bee", "wasp"))
    _, val_more = stratified_split(more, 0.2, 1, ("ant", "bee", "wasp"))
    assert val_few[few[val_few] == 0].tolist() == (val_more[more[val_more] == 1] - 5).tolist()


def test_classes_of_the_same_size_are_drawn_apart() -> None:
    labels = np.repeat([0, 1], [40, 40])
    _, val = stratified_split(labels, 0.2, 1, ("a", "b"))
    assert val[labels[val] == 0].tolist() != (val[labels[val] == 1] - 40).tolist()
