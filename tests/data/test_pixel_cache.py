from __future__ import annotations

import mmap
import multiprocessing
import os
import signal
from collections import namedtuple
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest

from runner.data import pixel_cache
from runner.data.pixel_cache import CachedSource, PixelCache, cached, estimated_bytes
from runner.data.source import Labels
from runner.data.stored import DecodedImage
from runner.errors import DeviceError, InvalidDatasetError

Usage = namedtuple("Usage", "total used free")


@dataclass
class Counted:
    """Image i is i + 1 pixels high and filled with i; says which images were loaded."""

    num_images: int = 9
    bad: int | None = None
    loaded: list[int] = field(default_factory=list)

    @property
    def labels(self) -> Labels:
        return np.arange(self.num_images, dtype=np.int64)

    def __len__(self) -> int:
        return self.num_images

    def load(self, image: int) -> np.ndarray:
        if image == self.bad:
            raise InvalidDatasetError(f"{image} is bad")
        self.loaded.append(image)
        return np.full((image + 1, 4, 3), image, dtype=np.uint8)

    def open(self, image: int) -> DecodedImage:
        return DecodedImage(self.load(image))

    def bytes_once_decoded(self, image: int) -> int | None:
        return (image + 1) * 4 * 3

    def describe(self, image: int) -> str:
        return str(image)


@pytest.fixture
def nothing_left_behind() -> object:
    folders = [Path("/dev/shm"), Path(pixel_cache.tempfile.gettempdir())]
    before = {file for folder in folders for file in folder.glob("runner-*.pixels")}
    yield
    assert {file for folder in folders for file in folder.glob("runner-*.pixels")} == before


def in_processes(work: Callable[[int], None], number: int = 3) -> list[int]:
    """Exit codes of forked processes that do this work."""
    processes = [multiprocessing.get_context("fork").Process(target=work, args=(rank,)) for rank in range(number)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    return [process.exitcode or 0 for process in processes]


@pytest.mark.usefixtures("nothing_left_behind")
def test_each_image_is_decoded_once_and_stays_the_same() -> None:
    source = Counted()
    kept = cached(source, "once", lambda: None)
    source.loaded.clear()
    for _ in range(3):
        for image in (3, 0, 8, 5):
            assert np.array_equal(kept.load(image), np.full((image + 1, 4, 3), image))
            assert kept.open(image).height == image + 1
    assert source.loaded == [3, 0, 8, 5]
    assert len(kept) == 9
    assert np.array_equal(kept.labels, source.labels)
    assert kept.describe(3) == "3"
    assert isinstance(kept, CachedSource)
    assert not kept.cache.has_run_out


@pytest.mark.usefixtures("nothing_left_behind")
def test_what_one_process_decodes_all_have() -> None:
    source = Counted(num_images=60)
    kept = cached(source, "shared", lambda: None)
    assert in_processes(lambda rank: [kept.load(image) for image in range(rank, 60, 3)] and None) == [0, 0, 0]
    source.bad = 7
    assert all((kept.load(image) == image).all() for image in range(60))


def test_processes_that_open_the_same_file_share_it(tmp_path: Path) -> None:
    file = tmp_path / "x.pixels"
    first, second = PixelCache(file, 5, 1000), PixelCache(file, 5, 1000)
    first.put(4, np.full((2, 3, 3), 9, dtype=np.uint8))
    second.put(0, np.full((1, 3, 3), 8, dtype=np.uint8))
    for cache in (first, second):
        assert cache.get(4) is not None
        assert (cache.get(4) == 9).all()
        assert (cache.get(0) == 8).all()
        assert cache.get(1) is None


def test_many_that_write_at_once_do_not_mix_their_pixels(tmp_path: Path) -> None:
    num_images = 400
    cache = PixelCache(tmp_path / "x.pixels", num_images, num_images * 300)

    def write(rank: int) -> None:
        for image in range(num_images):
            if cache.get(image) is None and image % 4 in (rank, 3):
                cache.put(image, np.full((10, 10, 3), image % 251, dtype=np.uint8))

    assert in_processes(write) == [0, 0, 0]
    missing = [image for image in range(num_images) if cache.get(image) is None]
    assert not missing or cache.has_run_out
    assert all((cache.get(image) == image % 251).all() for image in range(num_images) if image not in missing)


def test_who_is_killed_in_the_middle_blocks_nobody(tmp_path: Path) -> None:
    cache = PixelCache(tmp_path / "x.pixels", 3, 1000)

    def die(_: int) -> None:
        with pixel_cache._locked(cache._descriptor):
            os.kill(os.getpid(), signal.SIGKILL)

    assert in_processes(die, 1) == [-signal.SIGKILL]
    cache.put(1, np.ones((1, 1, 3), dtype=np.uint8))
    assert cache.get(1) is not None


def test_full(tmp_path: Path) -> None:
    cache = PixelCache(tmp_path / "x.pixels", 3, 20)
    cache.put(0, np.ones((1, 3, 3), dtype=np.uint8))
    cache.put(1, np.ones((2, 3, 3), dtype=np.uint8))
    assert cache.has_run_out
    assert cache.get(0) is not None
    assert cache.get(1) is None


def test_a_bad_image_is_bad_each_time() -> None:
    kept = cached(Counted(bad=2), "bad", lambda: None)
    for _ in range(2):
        with pytest.raises(InvalidDatasetError, match="2 is bad"):
            kept.load(2)


def test_everybody_has_opened_it_before_its_name_goes() -> None:
    seen = []
    folders = (Path("/dev/shm"), Path(pixel_cache.tempfile.gettempdir()))

    def look() -> None:
        seen.append([(folder / "runner-name.pixels").exists() for folder in folders])

    cached(Counted(), "name", look)
    assert any(seen[0])
    assert not any((folder / "runner-name.pixels").exists() for folder in folders)


def test_too_little_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pixel_cache, "available_memory", lambda: 1000)
    monkeypatch.setattr(pixel_cache.shutil, "disk_usage", lambda _: Usage(1000, 0, 1000))
    with pytest.raises(DeviceError, match=r"data\.cache=memory: the decoded training images need about .* GiB"):
        cached(Counted(), "large", lambda: None)


def test_little_memory_takes_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pixel_cache, "available_memory", lambda: 1000)
    assert pixel_cache._folder_for(mmap.PAGESIZE, 0) == Path(pixel_cache.tempfile.gettempdir())


def test_images_of_evaluation_take_memory_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pixel_cache, "available_memory", lambda: 10 * mmap.PAGESIZE)
    monkeypatch.setattr(pixel_cache.shutil, "disk_usage", lambda _: Usage(10**9, 0, 10**9))
    for evaluation, folder in ((3, "/dev/shm"), (5, pixel_cache.tempfile.gettempdir())):
        found = pixel_cache._folder_for(4 * mmap.PAGESIZE, evaluation * mmap.PAGESIZE)
        assert found == Path(folder)
    with pytest.raises(DeviceError, match=r"data\.cache=memory: the images of evaluation take .* GiB after"):
        cached(Counted(), "large", lambda: None, evaluation_bytes=9 * mmap.PAGESIZE)


def test_where_nobody_asked_a_full_machine_decodes_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    source, waited, said = Counted(), [], []
    needed = mmap.PAGESIZE + int(estimated_bytes(source) * 1.25)
    monkeypatch.setattr(pixel_cache, "available_memory", lambda: 8 * needed - 8)
    kept = cached(source, "full", lambda: waited.append(1), say_why_not=said.append)
    assert kept is source
    assert waited == [1], "the others wait for each"
    assert "more than an eighth of the free memory" in said[0]
    monkeypatch.setattr(pixel_cache, "available_memory", lambda: 8 * needed)
    assert isinstance(cached(source, "fits", lambda: None, say_why_not=said.append), CachedSource)
    assert len(said) == 1


def test_where_nobody_asked_a_folder_that_can_not_be_written_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> PixelCache:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(pixel_cache, "PixelCache", refuse)
    source, waited, said = Counted(), [], []
    assert cached(source, "no", lambda: waited.append(1), say_why_not=said.append) is source
    assert waited == [1]
    assert "Permission denied" in said[0]
    with pytest.raises(DeviceError, match=r"Permission denied; use data\.cache=none"):
        cached(source, "no", lambda: None)


def test_what_is_in_memory_is_not_kept_once_more() -> None:
    class InMemory(Counted):
        def bytes_once_decoded(self, image: int) -> None:
            return None

    source = InMemory()
    assert cached(source, "no", lambda: None) is source


def test_threads_that_decode_side_by_side_keep_their_images(tmp_path: Path) -> None:
    kept = CachedSource(Counted(num_images=200), PixelCache(tmp_path / "x.pixels", 200, 200 * 201 * 12))
    stored = [kept.open(image) for image in range(200)]
    with ThreadPoolExecutor(4) as threads:
        list(threads.map(lambda one: one.pixels(2), stored))
    assert not any(isinstance(one, DecodedImage) for one in stored)
    assert [(one.height, one.width) for one in stored] == [(image + 1, 4) for image in range(200)]
    for image in range(200):
        pixels = kept.cache.get(image)
        assert pixels is not None
        assert np.array_equal(pixels, np.full((image + 1, 4, 3), image))
