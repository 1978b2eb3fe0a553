"""Images that are decoded side by side: the same bits as one by one, and errors in their places."""

from __future__ import annotations

import gc
import json
import threading
import time
import warnings
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from threading import Barrier

import numpy as np
import pytest
import torch
from pydantic import TypeAdapter
from torch import Tensor

from runner.config.schema.transforms import Transform
from runner.data.images import decode
from runner.data.images.decode import open_image
from runner.data.images.stored import DecodedImage, Pixels, StoredImage
from runner.data.images.transforms import Pipeline, as_tensor, pipeline_of
from runner.data.loader.prepare import Outcome, prepare_images

CROP = {"name": "random_resized_crop", "size": 16}
FLIP = {"name": "random_horizontal_flip"}
JITTER = {"name": "color_jitter", "brightness": 0.5}
WAIT_SECONDS = 60.0


@pytest.fixture
def computing_with() -> Iterator[Callable[[int], None]]:
    """A function that sets the number of threads with which this process computes."""
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


@dataclass(frozen=True)
class Stored:
    """An image of 4 × 4 px that is filled with its number; `meet` is called when it is decoded."""

    number: int
    meet: Callable[[], object]
    height: int = 4
    width: int = 4

    def pixels(self, reduction: int = 1) -> Pixels:
        del reduction
        self.meet()
        return np.full((4, 4, 3), self.number, np.uint8)


def numbers(outcomes: list[Outcome]) -> list[int]:
    return [int(outcome[0, 0, 0]) for outcome in outcomes if isinstance(outcome, Tensor)]


def opened(path: Path, seed: int) -> StoredImage:
    torch.manual_seed(seed)
    return open_image(str(path))


@pytest.fixture
def files(tmp_path: Path, write_image: Callable[..., Path]) -> list[Path]:
    """JPEG and PNG files; of each kind one is damaged, and one file is missing."""
    paths = [write_image(tmp_path / f"{i}.{'png' if i % 4 == 0 else 'jpg'}", i, (90 + i, 70)) for i in range(24)]
    for damaged in (paths[4], paths[7]):
        content = damaged.read_bytes()
        damaged.write_bytes(content[: len(content) // 2])  # the header is whole, so that a JPEG can be opened
    paths[9].unlink()
    return paths


@pytest.mark.parametrize(
    "entries",
    [[CROP, FLIP], [JITTER, CROP], [{"name": "resize", "size": 20}, {"name": "random_crop", "size": 16}, FLIP]],
)
def test_bits_do_not_depend_on_the_threads(
    files: list[Path], entries: list[dict], computing_with: Callable[[int], None]
) -> None:
    pipeline = Pipeline([TypeAdapter(Transform).validate_json(json.dumps(entry)) for entry in entries], reduces=True)
    images = [partial(opened, path, seed) for seed, path in enumerate(files)]

    def outcomes(num_threads: int) -> list[bytes | str]:
        computing_with(num_threads)
        found = prepare_images(images, pipeline)
        return [outcome.numpy().tobytes() if isinstance(outcome, Tensor) else outcome for outcome in found]

    alone = outcomes(1)
    assert [place for place, outcome in enumerate(alone) if isinstance(outcome, str)] == [4, 7, 9]
    assert len({*alone}) == len(files)
    for num_threads in (2, 3, 64):
        assert outcomes(num_threads) == alone


def test_images_are_decoded_at_the_same_time(computing_with: Callable[[int], None]) -> None:
    computing_with(2)
    threads = threading.enumerate()
    together = Barrier(2, timeout=WAIT_SECONDS)  # breaks where nobody else comes
    images = [partial(Stored, number, together.wait) for number in range(40)]
    assert numbers(prepare_images(images, pipeline_of(()))) == list(range(40))
    # Whoever forks a loader process next must not take a lock of theirs along.
    assert threading.enumerate() == threads


def test_one_thread_decodes_alone(computing_with: Callable[[int], None]) -> None:
    computing_with(1)
    met: list[threading.Thread] = []
    prepare_images([partial(Stored, 0, lambda: met.append(threading.current_thread()))] * 12, pipeline_of(()))
    assert met == [threading.main_thread()] * 12


def test_images_in_memory_need_no_threads(
    computing_with: Callable[[int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    computing_with(4)
    monkeypatch.setattr(threading.Thread, "start", lambda _: pytest.fail("a thread was started"))
    images = [partial(DecodedImage, np.full((4, 4, 3), number, np.uint8)) for number in range(9)]
    assert numbers(prepare_images(images, pipeline_of(()))) == list(range(9))


def test_a_defect_in_any_thread_is_not_lost(computing_with: Callable[[int], None]) -> None:
    computing_with(2)
    together = Barrier(2, timeout=WAIT_SECONDS)

    def fail_elsewhere() -> None:
        together.wait()
        if threading.current_thread() is not threading.main_thread():
            raise ZeroDivisionError("a defect of ours")

    images = [partial(Stored, number, fail_elsewhere) for number in (1, 2)]
    with pytest.raises(ZeroDivisionError, match="a defect of ours"):
        prepare_images(images, pipeline_of(()))


def test_after_an_error_no_image_is_begun(computing_with: Callable[[int], None]) -> None:
    computing_with(2)
    helper_is_at_work = threading.Event()
    met: list[str] = []

    def interrupted_here() -> None:
        if threading.current_thread() is threading.main_thread():
            assert helper_is_at_work.wait(WAIT_SECONDS)
            raise KeyboardInterrupt
        helper_is_at_work.set()
        met.append("decoded")
        time.sleep(0.02)

    with pytest.raises(KeyboardInterrupt):
        prepare_images([partial(Stored, 0, interrupted_here)] * 16, pipeline_of(()))
    assert len(met) < 15


def test_draws_of_two_images_do_not_mix(computing_with: Callable[[int], None]) -> None:
    """Each image draws before and after it was decoded, and between these others draw."""

    class Draws:
        def begin(self, stored: StoredImage) -> Callable[[], Tensor]:
            first = torch.rand(())
            return lambda: as_tensor(stored.pixels()) + first

        def finish(self, image: Tensor) -> Tensor:
            return image + torch.rand(())

    def seeded(seed: int) -> Stored:
        torch.manual_seed(seed)
        return Stored(0, lambda: None)

    computing_with(8)
    outcomes = prepare_images([partial(seeded, seed) for seed in range(100)], Draws())
    for seed, outcome in enumerate(outcomes):
        torch.manual_seed(seed)
        assert isinstance(outcome, Tensor)
        assert outcome[0, 0, 0] == torch.rand(()) + torch.rand(())


@pytest.mark.parametrize("num_threads", [1, 2])
def test_a_bad_image_keeps_no_other_in_memory(
    files: list[Path], num_threads: int, computing_with: Callable[[int], None]
) -> None:
    computing_with(num_threads)
    images = [partial(open_image, str(path)) for path in files[:12]]
    gc.collect()
    gc.disable()  # an error refers to all that its frames refer to, which only the collector undoes
    try:
        outcomes = prepare_images(images, pipeline_of(()))
        alive = [weakref.ref(outcome) for outcome in outcomes if isinstance(outcome, Tensor)]
        assert len(alive) == 9
        del outcomes
        assert not any(reference() is not None for reference in alive)
    finally:
        gc.enable()


def test_threads_do_not_undo_each_others_silence() -> None:
    before = list(warnings.filters)
    other_is_inside = threading.Event()

    def enter() -> None:
        with decode._unwarned():
            other_is_inside.set()

    other = threading.Thread(target=enter)
    with decode._unwarned():
        other.start()
        assert not other_is_inside.wait(0.3)
    other.join(WAIT_SECONDS)
    assert other_is_inside.is_set()
    assert list(warnings.filters) == before
