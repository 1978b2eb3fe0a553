from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from runner.base.errors import InvalidDatasetError, NotLabeledDatasetError, RunnerError
from runner.config.schema.data import DataConfig
from runner.data.source import Opened
from runner.data.sources.folder import open_folder
from runner.data.sources.paths import resolve_paths

Make = Callable[..., DataConfig]
Write = Callable[..., Path]


@pytest.fixture
def open_root(tmp_path: Path, data_config: Make) -> Callable[..., tuple[Opened | None, list[RunnerError]]]:
    def run(**values: str) -> tuple[Opened | None, list[RunnerError]]:
        return open_folder(resolve_paths(data_config("folder", **(values or {"root": tmp_path}))))

    return run


def opened(result: tuple[Opened | None, list[RunnerError]]) -> Opened:
    splits, errors = result
    assert errors == []
    assert splits is not None
    return splits


def only_error(result: tuple[Opened | None, list[RunnerError]]) -> RunnerError:
    (error,) = result[1]
    return error


def test_three_splits(tmp_path: Path, write_images: Write, open_root: Callable) -> None:
    write_images(tmp_path / "train", {"ant": 3, "bee": 2})
    write_images(tmp_path / "val", {"ant": 1, "bee": 1})
    write_images(tmp_path / "test", {"bee": 4, "ant": 1})
    splits = opened(open_root())
    assert splits.classes == ("ant", "bee")
    assert splits.train.labels.tolist() == [0, 0, 0, 1, 1]
    assert splits.val is not None
    assert splits.test is not None
    assert splits.val.labels.tolist() == [0, 1]
    assert splits.test.labels.tolist() == [0, 1, 1, 1, 1]
    assert splits.notes == ()
    assert splits.train.open(0).pixels().shape == (20, 24, 3)
    assert splits.train.describe(4) == f"{tmp_path}/train/bee/1.png"


def test_classes_are_matched_by_name(tmp_path: Path, write_images: Write, open_root: Callable) -> None:
    write_images(tmp_path / "train", {"ant": 2, "bee": 2, "cat": 2, "dog": 2})
    write_images(tmp_path / "val", {"bee": 1, "dog": 2})
    (tmp_path / "val/cat").mkdir()
    splits = opened(open_root())
    assert splits.val is not None
    assert splits.val.labels.dtype == np.int64
    assert splits.val.labels.tolist() == [1, 3, 3]
    assert splits.notes == ("data.val: no image of 2 of 4 classes: ant, cat",)


def test_what_was_left_out_is_noted(tmp_path: Path, write_images: Write, open_root: Callable) -> None:
    write_images(tmp_path / "train", {"ant": 2, "bee": 2})
    (tmp_path / "train/ant/x.gif").touch()
    (tmp_path / "train/.DS_Store").touch()
    assert opened(open_root()).notes == (
        "data.train: left out 1 hidden (.DS_Store), 1 without an image extension (ant/x.gif)",
    )


@pytest.mark.parametrize("name", ["valid", "validation", "dev"])
def test_a_validation_split_under_another_name_is_noted(
    tmp_path: Path, write_images: Write, open_root: Callable, name: str
) -> None:
    write_images(tmp_path / "train", {"ant": 2, "bee": 2})
    write_images(tmp_path / name, {"ant": 1, "bee": 1})
    splits = opened(open_root())
    assert splits.val is None
    assert splits.notes == (
        f"{tmp_path}/{name} is not used; if it is the validation split: data.val={tmp_path}/{name}",
    )


def test_classes_that_training_lacks(tmp_path: Path, write_images: Write, open_root: Callable) -> None:
    write_images(tmp_path / "train", {"ant": 2, "bee": 2})
    write_images(tmp_path / "val", {"ant": 1, "wasp": 1, "Bee": 1})
    write_images(tmp_path / "test", {"fly": 1})
    _, errors = open_root()
    assert all(isinstance(error, InvalidDatasetError) for error in errors)
    assert [str(error) for error in errors] == [
        f"data.val = {tmp_path}/val: 2 of 3 classes are none of the training split {tmp_path}/train: Bee, wasp; "
        "the training split has ant, bee",
        f"data.test = {tmp_path}/test: 1 of 1 classes are none of the training split {tmp_path}/train: fly; "
        "the training split has ant, bee",
    ]


def test_empty_classes(tmp_path: Path, write_images: Write, open_root: Callable) -> None:
    write_images(tmp_path / "train", {"ant": 2, "bee": 0, "cat": 1, "dog": 0})
    (tmp_path / "train/dog/x.gif").touch()
    text = str(only_error(open_root()))
    assert f"data.train = {tmp_path}/train: 2 of 4 class folders hold no image: bee, dog; fill or remove" in text
    assert "dog/x.gif" in text


def test_a_single_class(tmp_path: Path, write_images: Write, open_root: Callable) -> None:
    write_images(tmp_path / "train", {"ant": 2})
    error = only_error(open_root())
    assert isinstance(error, InvalidDatasetError)
    assert f"{tmp_path}/train: only one class folder, ant, but a classifier needs at least 2" in str(error)


def test_all_mistakes_are_reported_together(tmp_path: Path, write_images: Write, open_root: Callable) -> None:
    write_images(tmp_path / "train", {"ant": 2, "bee": 0})
    write_images(tmp_path / "val", {"fly": 1})
    (tmp_path / "test").mkdir()
    _, errors = open_root()
    assert [str(error).partition(":")[0] for error in errors] == [
        f"data.test = {tmp_path}/test",
        f"data.train = {tmp_path}/train",
        f"data.val = {tmp_path}/val",
    ]


def test_val_is_looked_at_even_when_train_is_missing(tmp_path: Path, write_images: Write, open_root: Callable) -> None:
    (tmp_path / "other").mkdir()
    splits, errors = open_root(train=f"{tmp_path}/none", val=f"{tmp_path}/other")
    assert splits is None
    assert [type(error) for error in errors] == [InvalidDatasetError, InvalidDatasetError]
    assert f"data.train = {tmp_path}/none: there is no such folder" in str(errors[0])
    assert f"data.val = {tmp_path}/other: the folder is empty" in str(errors[1])


def test_a_missing_root(tmp_path: Path, open_root: Callable) -> None:
    error = only_error(open_root(root=f"{tmp_path}/none"))
    assert isinstance(error, InvalidDatasetError)
    assert f"data.root = {tmp_path}/none: there is no such folder; expected" in str(error)
    assert f"{tmp_path}/none/train/<class A>/1.jpg" in str(error)


def test_a_file_as_root(tmp_path: Path, open_root: Callable) -> None:
    (tmp_path / "x").touch()
    assert f"data.root = {tmp_path}/x: a part of this path is a file" in str(
        only_error(open_root(root=f"{tmp_path}/x"))
    )


def test_an_empty_root(open_root: Callable, tmp_path: Path) -> None:
    error = only_error(open_root())
    assert isinstance(error, InvalidDatasetError)
    assert f"data.root = {tmp_path}: the folder is empty" in str(error)


def test_a_root_of_loose_images(tmp_path: Path, open_root: Callable) -> None:
    (tmp_path / "1.jpg").touch()
    error = only_error(open_root())
    assert isinstance(error, NotLabeledDatasetError)
    assert f"data.root = {tmp_path}: has neither a folder `train` nor class folders" in str(error)
    assert f"{tmp_path}/train/<class A>/1.jpg" in str(error)


def test_a_train_folder_of_loose_images(tmp_path: Path, open_root: Callable) -> None:
    (tmp_path / "train").mkdir()
    (tmp_path / "train/1.jpg").touch()
    error = only_error(open_root())
    assert isinstance(error, NotLabeledDatasetError)
    assert f"data.train = {tmp_path}/train: holds images (1), but no class folders" in str(error)


def test_class_folders_right_below_the_root(tmp_path: Path, write_images: Write, open_root: Callable) -> None:
    write_images(tmp_path, {"ant": 1, "bee": 1})
    error = only_error(open_root())
    assert isinstance(error, InvalidDatasetError)
    assert str(error).endswith(f"if ant, bee are the classes, use data.train={tmp_path} instead of data.root")
    # What it says works.
    assert opened(open_root(train=str(tmp_path))).classes == ("ant", "bee")


def test_an_archive_unpacked_one_folder_too_deep(tmp_path: Path, write_images: Write, open_root: Callable) -> None:
    write_images(tmp_path / "photos/train", {"ant": 1, "bee": 1})
    text = str(only_error(open_root()))
    assert text.endswith(f"has no folder `train`, but {tmp_path}/photos has; use data.root={tmp_path}/photos")
    assert opened(open_root(root=f"{tmp_path}/photos")).classes == ("ant", "bee")


def test_a_root_of_other_things(tmp_path: Path, open_root: Callable) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs/readme.txt").touch()
    error = only_error(open_root())
    assert isinstance(error, InvalidDatasetError)
    assert f"data.root = {tmp_path}: has no folder `train`; expected" in str(error)


def test_long_lists_are_cut(tmp_path: Path, write_images: Write, open_root: Callable) -> None:
    write_images(tmp_path / "train", {"ant": 1, "bee": 1})
    write_images(tmp_path / "val", {f"other{number:02d}": 0 for number in range(30)} | {"ant": 1})
    text = str(only_error(open_root()))
    assert "other07, … (30 in all)" in text
    assert "other08" not in text
