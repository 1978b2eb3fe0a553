from __future__ import annotations

import os
import tempfile
from collections import namedtuple
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from runner.base.errors import InvalidDatasetError
from runner.config.schema.data import DataConfig
from runner.data.cache import cache_policy
from runner.data.cache.cache_policy import (
    MemoryBudgetError,
    choose_cache_folder,
    decide_cache_policy,
    leaves_memory_free,
    shared_memory_if_ample,
)
from runner.data.source import FolderSource, Labels
from runner.data.sources.index import scan_class_folders
from runner.data.sources.synthetic import SyntheticSource

Usage = namedtuple("Usage", "total used free")
MIB = 2**20
RESIZE, CROP = {"name": "resize", "size": 40}, {"name": "random_crop", "size": 32}
FLIP, RESIZED_CROP = {"name": "random_horizontal_flip"}, {"name": "random_resized_crop", "size": 32}


class Files:
    """So many images, each of so many bytes once it is decoded; counts how many were looked at."""

    def __init__(self, num_images: int, num_bytes: int, bad: tuple[int, ...] = ()) -> None:
        self.labels: Labels = np.zeros(num_images, dtype=np.int64)
        self.num_bytes, self.bad = num_bytes, bad
        self.num_looked_at = 0

    def __len__(self) -> int:
        return len(self.labels)

    def bytes_once_decoded(self, image: int) -> int:
        self.num_looked_at += 1
        if image in self.bad:
            raise InvalidDatasetError("it is damaged")
        return self.num_bytes

    def open(self, image: int) -> Any:
        raise AssertionError("nothing is decoded to decide this")

    load = describe = open


@pytest.mark.parametrize(
    ("entries", "num_images", "chosen"),
    [
        ([RESIZE], 1000, "device"),
        ([], 1000, "device"),
        ([RESIZE], 349_526, "memory"),  # of 3 · 16² bytes, 256 MiB
        ([RESIZE, CROP], 1000, "memory"),
        ([FLIP], 1000, "memory"),
        ([RESIZED_CROP], 1000, "memory"),
        ([RESIZED_CROP], 2**20, "memory"),
        ([RESIZED_CROP], 2**20 + 1, "none"),  # of 1024 bytes, 1 GiB
    ],
)
def test_auto_caches_small_data_sets(
    data_config: Callable[..., DataConfig], entries: list, num_images: int, chosen: str
) -> None:
    data = data_config("folder", cache="auto", image_size=16, train_transforms=entries)
    source = Files(num_images, 1024)
    decided = decide_cache_policy(data, source, num_images)
    assert decided.training == chosen
    assert decided.evaluation == (num_images <= 349_525)
    assert not decided.is_asked_for
    kept = decided.applied_to(data)
    assert (kept.cache, kept.jpeg_reduction) == (chosen, "none" if chosen == "memory" else "auto")


@pytest.mark.parametrize("asked", ["none", "memory", "device"])
def test_a_policy_in_the_config_is_used(data_config: Callable[..., DataConfig], asked: str) -> None:
    source = Files(1000, 1024)
    decided = decide_cache_policy(data_config("folder", cache=asked), source, 10**9)
    assert (decided.training, decided.evaluation, decided.is_asked_for) == (asked, asked != "none", True)
    assert source.num_looked_at == (64 if asked == "memory" else 0)
    assert decided.decoded_bytes == (1000 * 1024 if asked == "memory" else 0)


def test_a_far_too_large_data_set_is_recognised_by_a_few_headers(data_config: Callable[..., DataConfig]) -> None:
    source = Files(1_281_167, 3 * 500 * 375)
    data = data_config("folder", cache="auto", train_transforms=[RESIZED_CROP])
    assert decide_cache_policy(data, source, 50_000).training == "none"
    assert source.num_looked_at == 8


def test_damaged_images_do_not_count(data_config: Callable[..., DataConfig]) -> None:
    data = data_config("folder", cache="auto", train_transforms=[RESIZED_CROP])
    assert decide_cache_policy(data, Files(100, 3000, bad=(0, 99)), 0).training == "memory"


def test_images_in_memory_are_not_cached(data_config: Callable[..., DataConfig]) -> None:
    data = data_config("folder", cache="auto", train_transforms=[RESIZED_CROP])
    source = SyntheticSource(np.zeros((1, 8, 8, 3), np.uint8), np.zeros(100, np.int64))
    assert decide_cache_policy(data, source, 0).training == "none"
    asked = decide_cache_policy(data.model_copy(update={"cache": "memory"}), source, 0)
    assert (asked.training, asked.evaluation) == ("none", True)


def test_auto_caches_no_files_except_on_linux(
    data_config: Callable[..., DataConfig], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cache_policy.sys, "platform", "darwin")
    data = data_config("folder", cache="auto", train_transforms=[RESIZED_CROP])
    assert decide_cache_policy(data, Files(100, 3000), 0).training == "none"


def test_headers_tell_the_size(tmp_path: Path, write_image: Callable[..., Path]) -> None:
    write_image(tmp_path / "ant" / "a.png", size=(30, 20))
    write_image(tmp_path / "ant" / "b.jpg", size=(50, 10))
    (tmp_path / "ant" / "c.png").write_bytes((tmp_path / "ant" / "a.png").read_bytes()[:60])
    (tmp_path / "ant" / "d.png").write_bytes(b"no image")
    index = scan_class_folders(str(tmp_path), key="data.train")
    source = FolderSource(index, index.labels)
    assert [source.bytes_once_decoded(image) for image in range(3)] == [30 * 20 * 3, 50 * 10 * 3, 30 * 20 * 3]
    with pytest.raises(InvalidDatasetError, match=r"d\.png: this is no image"):
        source.bytes_once_decoded(3)


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch):
    """Sets the free bytes of memory, of the folder in memory, and of the temporary one."""

    def has(memory: int | None, shared: int, on_disk: int = 0) -> None:
        free = {cache_policy._SHARED: shared, Path(tempfile.gettempdir()): on_disk}
        monkeypatch.setattr(cache_policy, "available_memory", lambda: memory)
        monkeypatch.setattr(cache_policy.shutil, "disk_usage", lambda folder: Usage(10**12, 0, free[folder]))

    return has


def test_with_little_memory_the_cache_is_on_disk(machine) -> None:
    machine(10 * MIB, 100 * MIB, 100 * MIB)
    assert choose_cache_folder(7 * MIB, 0) == cache_policy._SHARED
    assert choose_cache_folder(9 * MIB, 0) == Path(tempfile.gettempdir())
    assert choose_cache_folder(4 * MIB, 5 * MIB) == Path(tempfile.gettempdir()), "images of evaluation take memory too"
    machine(None, 3 * MIB, 100 * MIB)
    assert choose_cache_folder(7 * MIB, 0) == Path(tempfile.gettempdir())


def test_the_error_for_too_little_memory_has_all_numbers(machine) -> None:
    machine(3 * 2**30, 64 * MIB, 2 * MIB)
    with pytest.raises(
        MemoryBudgetError, match=r"need about 70 MiB; free are 3\.0 GiB of memory, 64 MiB in /dev/shm and 2 MiB in"
    ):
        choose_cache_folder(70 * MIB, 0)
    machine(100 * MIB, 64 * MIB, 64 * MIB)
    with pytest.raises(
        MemoryBudgetError, match="the evaluation images take 81 MiB after their transforms, and only 100 MiB"
    ):
        choose_cache_folder(1, 81 * MIB)


def test_the_automatic_cache_takes_a_small_part_of_the_free_memory(machine) -> None:
    machine(80 * MIB, 40 * MIB)
    assert shared_memory_if_ample(10 * MIB) == cache_policy._SHARED
    machine(79 * MIB, 40 * MIB)
    with pytest.raises(MemoryBudgetError, match=r"up to 10 MiB, more than an eighth of the free memory \(79 MiB\)"):
        shared_memory_if_ample(10 * MIB)
    machine(None, 39 * MIB)
    with pytest.raises(
        MemoryBudgetError, match=r"up to 10 MiB, more than a quarter of what is free in /dev/shm \(39 MiB\)"
    ):
        shared_memory_if_ample(10 * MIB)


def test_there_is_no_cache_in_memory_except_on_linux(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache_policy.sys, "platform", "darwin")
    for refuse in (lambda: shared_memory_if_ample(1), lambda: choose_cache_folder(1, 0)):
        with pytest.raises(MemoryBudgetError, match="only Linux"):
            refuse()


@pytest.mark.parametrize(
    ("share_of_memory", "share_of_folder", "is_enough"),
    [(0.25, 0.5, True), (0.24, 0.9, False), (0.9, 0.49, False), (None, 0.5, True)],
)
def test_a_part_of_the_memory_stays_free(
    monkeypatch: pytest.MonkeyPatch, share_of_memory: float | None, share_of_folder: float, is_enough: bool
) -> None:
    status = namedtuple("status", "f_bavail f_blocks")(share_of_folder * 1000, 1000)
    monkeypatch.setattr(os, "fstatvfs", lambda _: status)
    monkeypatch.setattr(cache_policy, "free_fraction_of_memory", lambda: share_of_memory)
    assert leaves_memory_free(3) is is_enough
