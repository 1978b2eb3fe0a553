from __future__ import annotations

import errno
import gc
import multiprocessing
import os
import signal
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest

from runner.base.errors import InvalidDatasetError
from runner.data.cache import pixel_cache
from runner.data.cache.cache_policy import MemoryBudgetError
from runner.data.cache.pixel_cache import CachedSource, PixelCache, cache_pixels
from runner.data.images.stored import DecodedImage, InputFormat
from runner.data.source import Labels


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

    def open(self, image: int) -> DecodedImage:
        if image == self.bad:
            raise InvalidDatasetError(f"{image} is bad")
        self.loaded.append(image)
        return DecodedImage(np.full((image + 1, 4, 3), image, dtype=np.uint8))

    def bytes_once_decoded(self, image: int) -> int | None:
        return (image + 1) * 4 * 3

    def describe(self, image: int) -> str:
        return str(image)


@pytest.fixture
def nothing_left_behind() -> object:
    folders = [Path("/dev/shm"), Path(tempfile.gettempdir())]
    before = {file for folder in folders for file in folder.glob("runner-*.pixels")}
    yield
    assert {file for folder in folders for file in folder.glob("runner-*.pixels")} == before


def kept(
    source: Counted, name: str = "test", wait: Callable[[], object] = lambda: None, *, is_asked_for: bool = True
) -> CachedSource:
    return cache_pixels(
        source, sum(12 * (image + 1) for image in range(len(source))), name, wait, is_asked_for=is_asked_for
    )


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
    images = kept(source)
    source.loaded.clear()
    for _ in range(3):
        for image in (3, 0, 8, 5):
            assert np.array_equal(images.open(image).pixels(), np.full((image + 1, 4, 3), image))
            assert images.open(image).height == image + 1
    assert source.loaded == [3, 0, 8, 5]
    assert len(images) == 9
    assert np.array_equal(images.labels, source.labels)
    assert images.describe(3) == "3"


@pytest.mark.usefixtures("nothing_left_behind")
def test_an_image_that_one_process_decodes_is_cached_for_all() -> None:
    source = Counted(num_images=60)
    images = kept(source)
    assert in_processes(lambda rank: [images.open(image).pixels() for image in range(rank, 60, 3)] and None) == [
        0,
        0,
        0,
    ]
    source.bad = 7
    assert all((images.open(image).pixels() == image).all() for image in range(60))


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


def test_processes_that_write_at_once_do_not_mix_their_pixels(tmp_path: Path) -> None:
    num_images = 400
    cache = PixelCache(tmp_path / "x.pixels", num_images, num_images * 300)

    def write(rank: int) -> None:
        for image in range(num_images):
            if cache.get(image) is None and image % 4 in (rank, 3):
                cache.put(image, np.full((10, 10, 3), image % 251, dtype=np.uint8))

    assert in_processes(write) == [0, 0, 0]
    missing = [image for image in range(num_images) if cache.get(image) is None]
    # Where two have decoded the same image, the room of one is lost.
    assert len(missing) < num_images / 2
    assert all((cache.get(image) == image % 251).all() for image in range(num_images) if image not in missing)


def test_a_process_killed_while_it_writes_blocks_no_other(tmp_path: Path) -> None:
    cache = PixelCache(tmp_path / "x.pixels", 3, 1000)

    def die(_: int) -> None:
        with cache._locked():
            os.kill(os.getpid(), signal.SIGKILL)

    assert in_processes(die, 1) == [-signal.SIGKILL]
    cache.put(1, np.ones((1, 1, 3), dtype=np.uint8))
    assert cache.get(1) is not None


def test_a_full_cache_keeps_its_images_and_takes_no_more(tmp_path: Path) -> None:
    cache = PixelCache(tmp_path / "x.pixels", 3, 20)
    cache.put(0, np.ones((1, 3, 3), dtype=np.uint8))
    cache.put(1, np.ones((2, 3, 3), dtype=np.uint8))
    assert cache.get(0) is not None
    assert cache.get(1) is None


def test_an_image_is_cached_once(tmp_path: Path) -> None:
    cache = PixelCache(tmp_path / "x.pixels", 3, 20)
    for image in (0, 0, 0, 1):
        cache.put(image, np.ones((1, 3, 3), dtype=np.uint8))
    assert cache.get(1) is not None


def test_a_bad_image_is_bad_each_time() -> None:
    images = kept(Counted(bad=2))
    for _ in range(2):
        with pytest.raises(InvalidDatasetError, match="2 is bad"):
            images.open(2).pixels()


def test_all_processes_open_the_file_before_it_is_unlinked() -> None:
    seen = []
    kept(Counted(), "name", lambda: seen.append(len(list(Path("/dev/shm").glob("runner-name-*.pixels")))))
    assert seen == [1]
    assert not list(Path("/dev/shm").glob("runner-name-*.pixels"))


def open_pixels() -> int:
    gc.collect()  # those of tests before
    links = []
    for descriptor in Path("/proc/self/fd").iterdir():
        try:
            links.append(str(descriptor.readlink()))
        except FileNotFoundError:  # the one that lists them
            continue
    return sum(".pixels" in link for link in links)


def test_memory_is_freed_when_no_process_uses_the_cache() -> None:
    before = open_pixels()
    source = kept(Counted())
    source.open(3).pixels()
    assert open_pixels() > before
    del source
    assert open_pixels() == before


@pytest.mark.usefixtures("nothing_left_behind")
@pytest.mark.parametrize("is_asked_for", [True, False])
def test_a_file_that_can_not_be_made_is_no_reason_to_leave_the_others_waiting(
    monkeypatch: pytest.MonkeyPatch, is_asked_for: bool
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    before, waited = open_pixels(), []
    monkeypatch.setattr(pixel_cache.os, "posix_fallocate", refuse)
    with pytest.raises(MemoryBudgetError, match="the disk is full"):
        kept(Counted(), "no", lambda: waited.append(1), is_asked_for=is_asked_for)
    assert waited == [1]
    assert open_pixels() == before


@pytest.mark.parametrize("answer", [False, OSError("lxcfs is gone")])
def test_a_modest_cache_stops_growing_when_memory_gets_short(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: bool | OSError
) -> None:
    looks = iter([True, answer])

    def look(_: int) -> bool:
        if isinstance(seen := next(looks), OSError):
            raise seen
        return seen

    monkeypatch.setattr(pixel_cache, "leaves_memory_free", look)
    monkeypatch.setattr(pixel_cache, "_BYTES_BETWEEN_CHECKS", 30)
    cache = PixelCache(tmp_path / "x.pixels", 6, 1000, is_modest=True)
    for image in range(6):  # of 12 bytes each: the first look is at 24 to 36, the next one at 48 to 60
        cache.put(image, np.ones((1, 4, 3), dtype=np.uint8))
    assert [cache.get(image) is not None for image in range(6)] == [True, True, True, True, False, False]


def test_threads_that_decode_side_by_side_keep_their_images(tmp_path: Path) -> None:
    images = CachedSource(Counted(num_images=200), PixelCache(tmp_path / "x.pixels", 200, 200 * 201 * 12))
    stored = [images.open(image) for image in range(200)]
    with ThreadPoolExecutor(4) as threads:
        list(threads.map(lambda one: one.pixels(2), stored))
    assert not any(isinstance(one, DecodedImage) for one in stored)
    assert [(one.height, one.width) for one in stored] == [(image + 1, 4) for image in range(200)]
    for image in range(200):
        pixels = images.cache.get(image)
        assert pixels is not None
        assert np.array_equal(pixels, np.full((image + 1, 4, 3), image))


@pytest.mark.usefixtures("nothing_left_behind")
@pytest.mark.parametrize(
    "form",
    [InputFormat(channels=1), InputFormat(channels=4), InputFormat(channels=1, bit_depth=16)],
    ids=["grey", "RGBA", "16 bits"],
)
def test_pixels_of_each_format_are_kept(tmp_path: Path, form: InputFormat) -> None:
    generator = np.random.default_rng(0)
    largest = 2**form.bit_depth
    pixels = [generator.integers(0, largest, (height, 3, form.channels)).astype(form.dtype) for height in (1, 5, 2)]
    cache = PixelCache(tmp_path / "x.pixels", 3, sum(one.nbytes for one in pixels), form=form)
    for image, one in enumerate(pixels):
        cache.put(image, one)
    for image, one in enumerate(pixels):
        found = cache.get(image)
        assert found is not None
        assert found.dtype == form.dtype
        assert np.array_equal(found, one)
        assert found.flags.aligned
    cache.put(0, pixels[1])
    assert np.array_equal(cache.get(0), pixels[0])  # type: ignore[arg-type]
    full = PixelCache(tmp_path / "y.pixels", 2, pixels[0].nbytes, form=form)
    full.put(0, pixels[0])
    full.put(1, pixels[0])
    assert full.get(0) is not None
    assert full.get(1) is None
