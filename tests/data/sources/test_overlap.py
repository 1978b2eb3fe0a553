"""Splits that are the same images are refused, however they are spelt."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from runner.base.errors import InvalidDatasetError
from runner.config.schema.data import DataConfig
from runner.data.sources.overlap import find_same_places
from runner.data.sources.paths import resolve_paths
from runner.data.splits import Inspection, inspect_data


@pytest.fixture
def checked(
    tmp_path: Path,
    write_images: Callable[..., Path],
    data_config: Callable[..., DataConfig],
    monkeypatch: pytest.MonkeyPatch,
) -> Callable[..., Inspection]:
    """A function (**values) → what is found of a folder with train and val, seen from that folder."""
    for split in ("train", "val"):
        write_images(tmp_path / split, {"ant": 5, "bee": 5})
    monkeypatch.chdir(tmp_path)
    return lambda **values: inspect_data(resolve_paths(data_config("folder", root=tmp_path, **values)), 1)


def test_splits_of_their_own_are_fine(checked):
    assert checked().errors == ()


@pytest.mark.parametrize("val", ["train", "train/", "./val/../train", "link", "links/link", "/proc/self/cwd/train"])
def test_the_same_folder_in_any_spelling(checked, tmp_path, val):
    (tmp_path / "link").symlink_to("train")
    (tmp_path / "links").symlink_to(".")
    (error,) = checked(val=val).errors
    assert isinstance(error, InvalidDatasetError)
    assert f"is the same folder as data.train = {tmp_path}/train" in str(error)
    assert "data.val_fraction" in str(error)


@pytest.mark.parametrize(("key", "other"), [("test", "train"), ("test", "val")])
def test_the_test_split_too(checked, tmp_path, key, other):
    (error,) = checked(test=other).errors
    assert str(error).startswith(f"data.test = {tmp_path}/{other}: is the same folder as data.{other} =")


def test_a_split_within_another_is_refused(checked, tmp_path, write_images):
    write_images(tmp_path / "train/ant/more", {"ant": 2, "bee": 2})
    messages = [str(error) for error in checked(val="train/ant/more").errors]
    assert any(f"more: lies within data.train = {tmp_path}/train" in message for message in messages)
    (tmp_path / "deep").symlink_to("train/ant/more")
    messages = [str(error) for error in checked(train="deep", val="train").errors]
    assert any(f"data.train = {tmp_path}/deep: lies within data.val" in message for message in messages)


def test_a_folder_whose_name_only_begins_alike_is_another(tmp_path):
    for name in ("train", "train2"):
        (tmp_path / name).mkdir()
    places = {"data.train": str(tmp_path / "train"), "data.val": str(tmp_path / "train2"), "data.test": None}
    assert list(find_same_places(places, "folder")) == []


def test_class_folders_in_common_by_links(checked, tmp_path):
    (tmp_path / "val/ant").rename(tmp_path / "old")
    (tmp_path / "val/ant").symlink_to("../train/ant")
    (error,) = checked().errors
    assert "data.val" in str(error)
    assert "1 of 2 class folders are folders of data.train too, by links: ant" in str(error)
