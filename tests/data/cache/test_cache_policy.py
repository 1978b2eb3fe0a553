from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from runner.base.errors import InvalidDatasetError
from runner.config.schema.data import DataConfig
from runner.data.cache import cache_policy
from runner.data.cache.cache_policy import decide_cache_policy
from runner.data.source import FolderSource, Labels
from runner.data.sources.index import scan_class_folders
from runner.data.sources.synthetic import SyntheticSource

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
def test_auto_keeps_small_sets(
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
def test_what_is_asked_for_is_done(data_config: Callable[..., DataConfig], asked: str) -> None:
    source = Files(1000, 1024)
    decided = decide_cache_policy(data_config("folder", cache=asked), source, 10**9)
    assert (decided.training, decided.evaluation, decided.is_asked_for) == (asked, asked != "none", True)
    assert source.num_looked_at == (64 if asked == "memory" else 0)
    assert decided.decoded_bytes == (1000 * 1024 if asked == "memory" else 0)


def test_far_too_large_a_set_costs_a_few_looks(data_config: Callable[..., DataConfig]) -> None:
    source = Files(1_281_167, 3 * 500 * 375)
    data = data_config("folder", cache="auto", train_transforms=[RESIZED_CROP])
    assert decide_cache_policy(data, source, 50_000).training == "none"
    assert source.num_looked_at == 8


def test_damaged_images_do_not_count(data_config: Callable[..., DataConfig]) -> None:
    data = data_config("folder", cache="auto", train_transforms=[RESIZED_CROP])
    assert decide_cache_policy(data, Files(100, 3000, bad=(0, 99)), 0).training == "memory"


def test_images_in_memory_are_not_kept_once_more(data_config: Callable[..., DataConfig]) -> None:
    data = data_config("folder", cache="auto", train_transforms=[RESIZED_CROP])
    source = SyntheticSource(np.zeros((1, 8, 8, 3), np.uint8), np.zeros(100, np.int64))
    assert decide_cache_policy(data, source, 0).training == "none"
    asked = decide_cache_policy(data.model_copy(update={"cache": "memory"}), source, 0)
    assert (asked.training, asked.evaluation) == ("none", True)


def test_other_systems_decode_each_time(
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
