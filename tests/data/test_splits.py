from __future__ import annotations

import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from runner.base.errors import (
    ConfigError,
    InvalidDatasetError,
    NotLabeledDatasetError,
    OutputError,
    PreflightError,
    Problem,
    RunnerError,
)
from runner.config.schema.data import DataConfig
from runner.data.sources.paths import resolve_paths
from runner.data.splits import combine_errors, inspect_data, open_splits

Make = Callable[..., DataConfig]
Write = Callable[..., Path]


def test_a_folder_with_validation(tmp_path: Path, write_images: Write, data_config: Make) -> None:
    write_images(tmp_path / "train", {"ant": 4, "bee": 4})
    write_images(tmp_path / "val", {"ant": 1, "bee": 1})
    splits = open_splits(resolve_paths(data_config("folder", root=tmp_path)), 1, global_batch_size=8)
    assert (splits.classes, len(splits.train), len(splits.val), splits.test) == (("ant", "bee"), 8, 2, None)
    assert splits.notes == ()


def test_validation_is_made_from_training(tmp_path: Path, write_images: Write, data_config: Make) -> None:
    write_images(tmp_path / "train", {"ant": 10, "bee": 20, "cat": 1})
    data = resolve_paths(data_config("folder", root=tmp_path, val_fraction=0.3))
    splits = open_splits(data, 1)
    assert np.bincount(splits.val.labels, minlength=3).tolist() == [3, 6, 0]
    assert np.bincount(splits.train.labels).tolist() == [7, 14, 1]
    files = [source.describe(image) for source in (splits.train, splits.val) for image in range(len(source))]
    assert len(set(files)) == 31
    for source in (splits.train, splits.val):
        for image in range(len(source)):
            assert Path(source.describe(image)).parent.name == splits.classes[source.labels[image]]
    assert splits.val.open(0).pixels().shape == (20, 24, 3)
    assert splits.notes == (
        "there is no validation split: 9 of 31 training images (data.val_fraction = 0.3 of each class, seed 1) "
        "are set aside for it",
        "validation lacks the classes of a single image: cat",
    )
    again, other = open_splits(data, 1), open_splits(data, 2)
    assert [again.val.describe(image) for image in range(9)] == [splits.val.describe(image) for image in range(9)]
    assert [other.val.describe(image) for image in range(9)] != [splits.val.describe(image) for image in range(9)]


def test_digits(tmp_path: Path, data_config: Make) -> None:
    splits = open_splits(resolve_paths(data_config("digits", root=tmp_path / "digits")), 1)
    assert len(splits.train) + len(splits.val) == 1797
    assert splits.classes == tuple("0123456789")
    assert splits.train.open(0).pixels().shape == (8, 8, 3)


def test_synthetic(data_config: Make) -> None:
    splits = open_splits(resolve_paths(data_config("synthetic")), 1)
    assert (len(splits.train), len(splits.val), splits.test) == (40, 10, None)


def test_splits_travel_to_loader_processes(tmp_path: Path, write_images: Write, data_config: Make) -> None:
    write_images(tmp_path / "train", {"ant": 4, "bee": 4})
    for data in (data_config("folder", root=tmp_path), data_config("synthetic")):
        splits = open_splits(resolve_paths(data), 1)
        again = pickle.loads(pickle.dumps(splits))
        assert (again.train.open(3).pixels() == splits.train.open(3).pixels()).all()


def test_a_batch_larger_than_the_training_split(tmp_path: Path, write_images: Write, data_config: Make) -> None:
    write_images(tmp_path / "train", {"ant": 5, "bee": 5})
    data = resolve_paths(data_config("folder", root=tmp_path, batch_size=4))
    assert len(open_splits(data, 1, global_batch_size=8).train) == 8
    with pytest.raises(InvalidDatasetError) as caught:
        open_splits(data, 1, global_batch_size=12)
    assert str(caught.value) == (
        f"{tmp_path}/train: one step needs 12 images (data.batch_size = 4 × 3 processes), but the training split has "
        "only 8; set data.batch_size to at most 2"
    )


def test_more_processes_than_images(data_config: Make) -> None:
    with pytest.raises(InvalidDatasetError, match="use fewer processes"):
        open_splits(data_config("synthetic", num_train=10), 1, global_batch_size=4 * 16)


def test_a_split_without_a_readable_image(tmp_path: Path, write_images: Write, data_config: Make) -> None:
    write_images(tmp_path / "train", {"ant": 4, "bee": 4})
    write_images(tmp_path / "val", {"ant": 2, "bee": 10})
    for file in tmp_path.glob("val/*/*.png"):
        file.write_bytes(b"")
    with pytest.raises(InvalidDatasetError) as caught:
        open_splits(resolve_paths(data_config("folder", root=tmp_path)), 1)
    assert str(caught.value) == (
        "data.val: no readable image: 8 of 12 were tried, none can be decoded; "
        f"the first: {tmp_path}/val/ant/0.png: the file is empty (0 bytes)"
    )


def test_some_bad_images_are_found_when_they_are_used(tmp_path: Path, write_images: Write, data_config: Make) -> None:
    write_images(tmp_path / "train", {"ant": 5, "bee": 5})
    for file in tmp_path.glob("train/ant/*.png"):
        file.write_bytes(b"")
    splits = open_splits(resolve_paths(data_config("folder", root=tmp_path)), 1)
    with pytest.raises(InvalidDatasetError, match="0 bytes"):
        splits.train.open(0).pixels()


def test_only_single_images(tmp_path: Path, write_images: Write, data_config: Make) -> None:
    write_images(tmp_path / "train", {"ant": 1, "bee": 1})
    with pytest.raises(InvalidDatasetError, match=f"{tmp_path}/train: no image can be set aside for validation"):
        open_splits(resolve_paths(data_config("folder", root=tmp_path)), 1)


def test_an_explicit_val_that_is_missing_is_not_replaced(
    tmp_path: Path, write_images: Write, data_config: Make
) -> None:
    write_images(tmp_path / "train", {"ant": 4, "bee": 4})
    inspection = inspect_data(resolve_paths(data_config("folder", root=tmp_path, val=tmp_path / "none")), 1)
    assert inspection.splits is None
    (error,) = inspection.errors
    assert f"data.val = {tmp_path}/none: there is no such folder" in str(error)


def test_an_unlabelled_folder(tmp_path: Path, data_config: Make) -> None:
    (tmp_path / "train").mkdir()
    (tmp_path / "train/1.jpg").touch()
    with pytest.raises(NotLabeledDatasetError):
        open_splits(resolve_paths(data_config("folder", root=tmp_path)), 1)


def test_mistakes_of_one_kind_keep_their_name(tmp_path: Path, write_images: Write, data_config: Make) -> None:
    write_images(tmp_path / "train", {"ant": 4, "bee": 0})
    write_images(tmp_path / "val", {"fly": 1})
    with pytest.raises(InvalidDatasetError) as caught:
        open_splits(resolve_paths(data_config("folder", root=tmp_path)), 1)
    first, second, third = str(caught.value).splitlines()
    assert first == "2 mistakes"
    assert second.startswith(f"  1. data.train = {tmp_path}/train: 1 of 2 class folders hold no image: bee")
    assert third.startswith(f"  2. data.val = {tmp_path}/val: 1 of 1 classes are none of the training split")


def test_a_mistake_in_validation_does_not_hide_one_in_the_batch_size(
    tmp_path: Path, write_images: Write, data_config: Make
) -> None:
    write_images(tmp_path / "train", {"ant": 4, "bee": 4})
    write_images(tmp_path / "val", {"fly": 1})
    inspection = inspect_data(resolve_paths(data_config("folder", root=tmp_path)), 1, global_batch_size=16)
    unknown_class, too_large = map(str, inspection.errors)
    assert "fly" in unknown_class
    assert "16 images" in too_large
    assert "only 8" in too_large


def test_mistakes_of_different_kinds(tmp_path: Path, write_images: Write, data_config: Make) -> None:
    (tmp_path / "train").mkdir()
    (tmp_path / "train/1.jpg").touch()
    data = data_config("folder", root=tmp_path, val=tmp_path / "none", eval_transforms=[])
    with pytest.raises(PreflightError) as caught:
        open_splits(resolve_paths(data), 1)
    keys = [problem.key or problem.message.partition(" = ")[0] for problem in caught.value.problems]
    assert keys == [
        "data.eval_transforms",
        "NotLabeledDatasetError: data.train",
        "InvalidDatasetError: data.val",
    ]


def test_a_wrong_pipeline_is_a_config_error(data_config: Make) -> None:
    with pytest.raises(ConfigError) as caught:
        open_splits(data_config("synthetic", image_size=8, train_transforms=[{"name": "resize", "size": 9}]), 1)
    assert [problem.key for problem in caught.value.problems] == ["data.train_transforms"]


def test_a_cache_folder_that_can_not_be_written(tmp_path: Path, data_config: Make) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(OutputError, match="RUNNER_CACHE"):
        open_splits(resolve_paths(data_config("digits", root=tmp_path / "file/digits")), 1)


@pytest.mark.parametrize(
    ("errors", "kind", "text"),
    [
        ([InvalidDatasetError("a")], InvalidDatasetError, "a"),
        ([OutputError("a"), OutputError("b")], OutputError, "2 mistakes\n  1. a\n  2. b"),
        (
            [OutputError("a"), InvalidDatasetError("b")],
            PreflightError,
            "2 mistakes\n  1. OutputError: a\n  2. InvalidDatasetError: b",
        ),
        (
            [ConfigError([Problem(key="x", message="m")]), ConfigError([Problem(key="y", message="n")])],
            ConfigError,
            "2 mistakes\n  1. x: m\n  2. y: n",
        ),
    ],
)
def test_errors_are_combined(errors: list[RunnerError], kind: type[RunnerError], text: str) -> None:
    error = combine_errors(errors)
    assert type(error) is kind
    assert str(error) == text


def test_a_folder_is_opened_without_torch(tmp_path: Path, write_images: Write, data_config: Make) -> None:
    write_images(tmp_path / "train", {"ant": 4, "bee": 4})
    code = (
        "import sys; from pydantic import TypeAdapter; from runner.config.schema.data import DataConfig\n"
        "from runner.data.sources.paths import resolve_paths; from runner.data.splits import open_splits\n"
        "splits = open_splits(resolve_paths(TypeAdapter(DataConfig).validate_json(sys.argv[1])), 1)\n"
        "print(len(splits.train), [name for name in ('torch', 'sklearn') if name in sys.modules])"
    )
    process = subprocess.run(
        [sys.executable, "-c", code, data_config("folder", root=tmp_path).model_dump_json()],
        capture_output=True,
        text=True,
        check=True,
        cwd=Path(__file__).parents[2],
    )
    assert process.stdout.strip() == "6 []"
