"""A data set is told from another one of the same names."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from runner.base.errors import DeviceError
from runner.config.schema.data import DataConfig
from runner.data import fingerprint as module
from runner.data.fingerprint import content_differences, content_of, fingerprint
from runner.data.sources.paths import resolve_paths
from runner.data.splits import Splits, open_splits


@pytest.fixture
def opened(
    tmp_path: Path, write_images: Callable[..., Path], data_config: Callable[..., DataConfig]
) -> Callable[[], Splits]:
    for split in ("train", "val"):
        write_images(tmp_path / split, {"ant": 4, "bee": 4})
    return lambda: open_splits(resolve_paths(data_config("folder", root=tmp_path)), 1)


def swap(one: Path, other: Path) -> None:
    content = one.read_bytes()
    one.write_bytes(other.read_bytes())
    other.write_bytes(content)


def same_size(*files: Path) -> None:
    """Make files of the same size of them, which stay images."""
    largest = max(file.stat().st_size for file in files)
    for file in files:
        file.write_bytes(file.read_bytes() + bytes(largest - file.stat().st_size))


def test_images_that_are_swapped_under_equal_names(opened, tmp_path):
    images = [tmp_path / "train" / name / "1.png" for name in ("ant", "bee")]
    same_size(*images)
    names, before = fingerprint(opened()), content_of(opened(), "sampled")
    assert content_of(opened(), "sampled") == before
    swap(*images)
    after = content_of(opened(), "sampled")
    assert fingerprint(opened()) == names
    assert content_differences(before, after, ("train", "val")) == [
        "data.train: files of its images hold other bytes (8 of 8 were compared)"
    ]
    assert content_differences(before, after, ("val",)) == []


def test_another_size(opened, tmp_path, monkeypatch):
    monkeypatch.setattr(module, "_NUM_SAMPLED", 1)
    before = content_of(opened(), "sampled")
    for file in (tmp_path / "val/ant").iterdir():
        file.write_bytes(file.read_bytes() + b"more")
    after = content_of(opened(), "sampled")
    assert content_differences(before, after, ("train", "val")) == ["data.val: files of its images have other sizes"]


def test_the_full_fingerprint_covers_files_outside_the_sample(opened, tmp_path, monkeypatch):
    monkeypatch.setattr(module, "_NUM_SAMPLED", 2)
    files = sorted((tmp_path / "train").glob("*/*.png"))
    same_size(*files)
    before = content_of(opened(), "full")
    (sample,) = {tuple(module._sample(8, 2).tolist())}
    swap(*[file for position, file in enumerate(files) if position not in sample][:2])
    after = content_of(opened(), "full")
    assert content_differences(before, after, ("train",)) == ["data.train: files of its images hold other bytes"]
    assert content_differences(before, content_of(opened(), "sampled"), ("train",)) == []


def test_only_digests_that_both_have_are_compared(opened, tmp_path):
    before = content_of(opened(), "names")
    assert set(before["train"]) == {"count", "names"}
    for nothing in (None, {}, [], "x", {"train": None}, {"train": {}}, {"train": {"count": "x"}}):
        assert content_differences(nothing, content_of(opened(), "full"), ("train", "val", "test")) == []
    (tmp_path / "train/ant/0.png").rename(tmp_path / "train/ant/9.png")
    assert content_differences(before, content_of(opened(), "names"), ("train",)) == [
        "data.train: its images have other names, labels or another order"
    ]
    (tmp_path / "train/ant/9.png").unlink()
    assert content_differences(before, content_of(opened(), "names"), ("train",)) == [
        "data.train: it has 7 images, and had 8"
    ]


def test_a_data_set_may_be_moved(opened, tmp_path, data_config):
    before = content_of(opened(), "full")
    (tmp_path / "elsewhere").mkdir()
    for split in ("train", "val"):
        (tmp_path / split).rename(tmp_path / "elsewhere" / split)
    moved = open_splits(resolve_paths(data_config("folder", root=tmp_path / "elsewhere")), 1)
    assert content_of(moved, "full") == before


def test_images_in_memory(data_config):
    one, same, other = (
        content_of(open_splits(resolve_paths(data_config("synthetic")), seed), "sampled") for seed in (1, 1, 2)
    )
    assert one == same
    assert content_differences(one, other, ("train",)) == [
        "data.train: files of its images hold other bytes (40 of 40 were compared)"
    ]


def test_a_missing_file_changes_the_fingerprint_and_a_fault_of_the_machine_raises(opened, tmp_path, monkeypatch):
    splits = opened()
    before = content_of(splits, "sampled")
    (tmp_path / "val/ant/0.png").unlink()
    os.mkfifo(tmp_path / "val/ant/0.png")
    assert content_differences(before, content_of(splits, "sampled"), ("val",)) == [
        "data.val: files of its images have other sizes"
    ]

    def fail(*_: object) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(module, "open_regular", fail)
    with pytest.raises(DeviceError, match="can't be read at this moment"):
        content_of(splits, "sampled")


def test_the_sample_is_the_same_for_the_same_number_of_images():
    sample = module._sample(1_000_000, 1024)
    assert np.array_equal(sample, module._sample(1_000_000, 1024))
    assert 1000 < len(sample) <= 1024
    assert (np.diff(sample) > 0).all()
    assert sample[-1] < 1_000_000
    assert module._sample(5, 1024).tolist() == [0, 1, 2, 3, 4]


def test_no_more_than_the_beginning_of_a_sampled_file_is_read(opened, tmp_path):
    large = tmp_path / "val/ant/0.png"
    Image.new("RGB", (4, 4)).save(large)
    with large.open("r+b") as file:
        file.truncate(1 << 40)  # a terabyte that takes no room
    assert content_of(opened(), "sampled", names=["val"])["val"]["num_sampled"] == 8
