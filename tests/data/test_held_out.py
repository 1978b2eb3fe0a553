from __future__ import annotations

import numpy as np
import pytest

from runner.data.held_out import grouped_split, stratified_split


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


def make_groups(num_groups: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Labels of three classes, in groups of 1 … 8 images, most of them of one class."""
    generator = np.random.default_rng(seed)
    labels, groups = [], []
    for group in range(num_groups):
        size = int(generator.integers(1, 9))
        labels += generator.choice(3, size=size, p=np.roll([0.9, 0.05, 0.05], group)).tolist()
        groups += [group] * size
    return np.array(labels, dtype=np.int64), np.array(groups, dtype=np.int64)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("fraction", [0.1, 0.25, 0.5])
def test_groups_stay_together_and_classes_keep_their_shares(fraction, seed):
    labels, groups = make_groups(300, seed)
    train, val = grouped_split(labels, groups, fraction, seed, ["a", "b", "c"])
    assert sorted([*train, *val]) == list(range(len(labels)))
    assert not {groups[image] for image in train} & {groups[image] for image in val}
    for label in range(3):
        share = (labels[val] == label).sum() / (labels == label).sum()
        assert share == pytest.approx(fraction, abs=0.04)


def test_the_split_of_groups_depends_on_the_seed_and_not_on_the_order_of_images():
    labels, groups = make_groups(60, 0)
    classes = ["a", "b", "c"]
    chosen = {groups[image] for image in grouped_split(labels, groups, 0.2, 1, classes)[1]}
    turned = grouped_split(labels[::-1], groups[::-1], 0.2, 1, classes)[1]
    assert {groups[::-1][image] for image in turned} == chosen
    assert {groups[image] for image in grouped_split(labels, groups, 0.2, 2, classes)[1]} != chosen


def test_a_class_of_one_group_stays_in_training_and_large_groups_are_shared_out():
    labels = np.array([0] * 10 + [1] * 10 + [2] * 4, dtype=np.int64)
    groups = np.array([0] * 5 + [1] * 5 + [2] * 9 + [3] + [4] * 4)
    train, val = grouped_split(labels, groups, 0.2, 0, ["x", "y", "z"])
    # A fifth of 10 is less than any group of x has; its validation images are one group all the same.
    assert {groups[image] for image in val} in ({0, 3}, {1, 3})
    assert (labels[train] == 2).sum() == 4
