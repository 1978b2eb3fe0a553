from __future__ import annotations

import gc
import hashlib
import multiprocessing
import os
import pickle
import resource
import signal
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torchvision.transforms import v2

from runner.base.errors import DeviceError, InvalidDatasetError
from runner.config.schema.data import DataConfig
from runner.data.images.stored import DecodedImage, StoredImage
from runner.data.images.transforms import as_tensor, early_transforms, eval_transform, train_transform
from runner.data.loader import loader as loader_module
from runner.data.loader.batch import Batch
from runner.data.loader.loader import EvalBatches, TrainBatches
from runner.data.loader.order import epoch_order
from runner.data.loader.prepare import Preparation
from runner.data.source import Labels
from runner.data.sources.paths import resolve_paths
from runner.data.splits import open_splits

WORKERS = [0, 1, 3]
CPU = torch.device("cpu")


@dataclass(frozen=True)
class Numbered:
    """Image i is filled with i; what `at` says happens when that image is loaded."""

    num_images: int
    at: dict[int, str] = field(default_factory=dict)

    @property
    def labels(self) -> Labels:
        return np.arange(self.num_images, dtype=np.int64) * 10

    def __len__(self) -> int:
        return self.num_images

    def open(self, image: int) -> DecodedImage:
        match self.at.get(image):
            case "bad":
                raise InvalidDatasetError(f"/set/{image}.jpg: the file is empty (0 bytes)")
            case "defect":
                raise ZeroDivisionError("a defect of ours")
            case "killed":
                os.kill(os.getpid(), signal.SIGKILL)
            case "full":  # as /dev/shm of a container is; in a loader process only
                resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
        return DecodedImage(np.full((6, 8, 3), image, dtype=np.uint8))

    def describe(self, image: int) -> str:
        return f"/set/{image}.jpg"


@dataclass(frozen=True)
class OfPixels:
    """A transform of all pixels."""

    transform: Callable[[Tensor], Tensor]

    def begin(self, stored: StoredImage) -> Callable[[], Tensor]:
        return lambda: as_tensor(stored.pixels())

    def finish(self, image: Tensor) -> Tensor:
        return self.transform(image)


def preparation(values: dict[str, Any]) -> Preparation:
    """What is asked for, or `transform` of all pixels."""
    return values.pop("preparation", None) or OfPixels(values.pop("transform", v2.Identity()))


def train_batches(num_images: int = 23, **values: Any) -> TrainBatches:
    source = values.pop("source", None) or Numbered(num_images)
    defaults: dict[str, Any] = {
        "seed": 1,
        "batch_size": 4,
        "rank": 0,
        "world_size": 1,
        "last_batch": "keep",
        "workers": 0,
        "pin_memory": False,
    }
    return TrainBatches(source, preparation(values), **{**defaults, **values})


def eval_batches(num_images: int = 23, **values: Any) -> EvalBatches:
    source = values.pop("source", None) or Numbered(num_images)
    defaults: dict[str, Any] = {"batch_size": 4, "rank": 0, "world_size": 1, "workers": 0, "pin_memory": False}
    return EvalBatches(source, preparation(values), **{**defaults, **values})


def noise(image: Tensor) -> Tensor:
    """As random as a transform can be."""
    return torch.randint_like(image, 256)


def content(batches: Iterator[Batch]) -> list[tuple[list[int], list[int], bytes]]:
    return [(batch.ids.tolist(), batch.labels.tolist(), batch.images.numpy().tobytes()) for batch in batches]


def ids(batches: Iterator[Batch]) -> list[list[int]]:
    return [batch.ids.tolist() for batch in batches]


def flat(lists: Iterable[list[int]]) -> list[int]:
    return list(chain.from_iterable(lists))


@pytest.mark.parametrize("workers", WORKERS)
def test_a_batch_has_images_labels_and_numbers(workers: int) -> None:
    batches = train_batches(workers=workers)
    for batch in batches.stream(0, 0, 1):
        assert batch.images.shape == (len(batch.ids), 3, 6, 8)
        assert batch.images.dtype == torch.uint8
        assert batch.images.is_contiguous(memory_format=torch.channels_last)
        assert batch.labels.dtype == batch.ids.dtype == torch.int64
        assert batch.labels.tolist() == (batch.ids * 10).tolist()
        assert (batch.images == batch.ids.view(-1, 1, 1, 1)).all()


def test_an_epoch_is_every_image_once_and_each_epoch_has_its_own_order() -> None:
    batches = train_batches(23)
    assert batches.plan.batches_per_epoch == 6
    epochs = [flat(ids(batches.stream(epoch, 0, epoch + 1))) for epoch in range(3)]
    for order in epochs:
        assert sorted(order) == list(range(23))
    assert epochs[0] != epochs[1] != epochs[2]
    assert epochs[0] != flat(ids(train_batches(23, seed=2).stream(0, 0, 1)))


@pytest.mark.parametrize("last_batch", ["keep", "drop"])
def test_the_plan_says_what_comes(last_batch: str) -> None:
    batches = train_batches(23, last_batch=last_batch)
    sizes = [len(batch.ids) for batch in batches.stream(0, 0, 1)]
    assert sizes == [stop - start for start, stop in batches.plan.batches_from(0)]
    assert sum(sizes) == {"keep": 23, "drop": 20}[last_batch]


def test_the_ranks_share_each_global_batch() -> None:
    one = ids(train_batches(54, batch_size=12).stream(0, 0, 2))
    ranks = [ids(train_batches(54, batch_size=4, rank=rank, world_size=3).stream(0, 0, 2)) for rank in range(3)]
    for whole, *parts in zip(one, *ranks, strict=True):
        assert flat(parts) == whole


def ledger(workers: int, world_size: int, epoch: int) -> list[tuple[int, str]]:
    """Each image that any rank got in an epoch, with a digest of its pixels."""
    return [
        (image, hashlib.sha256(pixels.numpy().tobytes()).hexdigest())
        for rank in range(world_size)
        for batch in train_batches(
            46, batch_size=8 // world_size, transform=noise, workers=workers, rank=rank, world_size=world_size
        ).stream(epoch, 0, epoch + 1)
        for image, pixels in zip(batch.ids.tolist(), batch.images, strict=True)
    ]


@pytest.mark.parametrize("workers", [0, 1, 4])
@pytest.mark.parametrize("world_size", [1, 2, 4])
def test_each_image_once_per_epoch_with_the_same_pixels(workers: int, world_size: int) -> None:
    for epoch in range(2):
        found = ledger(workers, world_size, epoch)
        assert sorted(image for image, _ in found) == list(range(46))
        assert sorted(found) == sorted(ledger(0, 1, epoch))


def test_global_sizes_are_those_of_all_ranks() -> None:
    batches = [train_batches(47, batch_size=4, rank=rank, world_size=3) for rank in range(3)]
    streams = [batch.stream(0, 0, 1) for batch in batches]
    for (start, stop), *parts in zip(batches[0].plan.batches_from(0), *streams, strict=True):
        assert sum(len(part.ids) for part in parts) == stop - start


@pytest.mark.parametrize("workers", WORKERS[1:])
def test_loader_processes_change_nothing(workers: int) -> None:
    expected = content(train_batches(23, transform=noise).stream(0, 0, 2))
    assert content(train_batches(23, transform=noise, workers=workers).stream(0, 0, 2)) == expected


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize(("epoch", "batch"), [(0, 0), (0, 1), (0, 5), (1, 0), (1, 3), (2, 5), (1, 6)])
def test_a_stream_can_start_anywhere(workers: int, epoch: int, batch: int) -> None:
    batches = train_batches(23, transform=noise, workers=workers)
    whole = content(replace(batches, workers=0).stream(0, 0, 3))
    position = min(batch * 4, 23)
    assert content(batches.stream(epoch, position, 3)) == whole[epoch * 6 + batch :]


@pytest.mark.parametrize("world_size", [2, 3])
def test_other_processes_go_on_where_some_stopped(world_size: int) -> None:
    before = ids(train_batches(50, batch_size=6).stream(1, 0, 2))[:3]
    after = [
        ids(train_batches(50, batch_size=4, rank=rank, world_size=world_size).stream(1, 18, 2))
        for rank in range(world_size)
    ]
    together = flat(before) + flat(flat(parts) for parts in zip(*after, strict=True))
    assert together == flat(ids(train_batches(50).stream(1, 0, 2)))


def test_the_next_images_are_those_that_come() -> None:
    batches = train_batches(23)
    order = flat(ids(batches.stream(0, 0, 2)))
    assert batches.next_ids(0, 8, 5).tolist() == order[8:13]
    assert batches.next_ids(0, 20, 5).tolist() == order[20:23]
    assert batches.next_ids(0, 23, 5).tolist() == order[23:28]


@pytest.mark.parametrize("workers", [0, 2])
def test_a_stream_from_the_end_is_empty(workers: int) -> None:
    assert list(train_batches(23, workers=workers).stream(3, 0, 3)) == []
    assert list(train_batches(23, workers=workers).stream(2, 23, 3)) == []


def test_augmentation_depends_on_epoch_and_image_alone() -> None:
    def by_image(batches: TrainBatches, epoch: int) -> dict[int, bytes]:
        return {
            image: pixels.numpy().tobytes()
            for batch in batches.stream(epoch, 0, epoch + 1)
            for image, pixels in zip(batch.ids.tolist(), batch.images, strict=True)
        }

    first = by_image(train_batches(23, transform=noise), 0)
    assert len(set(first.values())) == 23
    assert by_image(train_batches(23, transform=noise, batch_size=7), 0) == first
    second = by_image(train_batches(23, transform=noise), 1)
    assert not set(second.values()) & set(first.values())
    assert not set(by_image(train_batches(23, transform=noise, seed=2), 0).values()) & set(first.values())


@pytest.mark.parametrize("workers", [0, 2])
def test_torchs_generator_is_left_alone(workers: int) -> None:
    torch.manual_seed(5)
    state = torch.get_rng_state()
    for _ in train_batches(23, transform=noise, workers=workers).stream(0, 0, 1):
        assert torch.equal(torch.get_rng_state(), state)
    for _ in eval_batches(23, transform=noise, workers=workers):
        assert torch.equal(torch.get_rng_state(), state)


def test_the_state_of_torchs_generator_does_not_matter() -> None:
    torch.manual_seed(5)
    expected = content(train_batches(23, transform=noise).stream(0, 0, 1))
    torch.manual_seed(6)
    assert content(train_batches(23, transform=noise).stream(0, 0, 1)) == expected


@pytest.mark.parametrize("workers", [0, 2])
def test_early_epochs_have_preparations_of_their_own(workers: int, data_config: Callable[..., DataConfig]) -> None:
    entries = [{"epochs": 2, "image_size": 8}, {"epochs": 1, "image_size": 12}]
    data = data_config("folder", progressive_resizing=entries)
    batches = train_batches(6, preparation=train_transform(data), early=early_transforms(data), workers=workers)
    sides = [(batch.images.shape[-1]) for batch in batches.stream(1, 0, 5)]
    per_epoch = batches.plan.batches_per_epoch
    assert sides == [*[8] * per_epoch, *[12] * per_epoch, *[16] * 2 * per_epoch]
    whole = content(batches.stream(0, 0, 4))
    position = batches.plan.full_size
    assert content(batches.stream(2, position, 4)) == whole[2 * per_epoch + 1 :]


def test_the_preview_is_what_training_sees() -> None:
    batches = train_batches(23, transform=noise)
    stream = batches.stream(0, 0, 1)
    first = torch.cat([next(stream).images, next(stream).images])
    assert torch.equal(batches.preview(6).images, first[:6])
    assert len(batches.preview(100).ids) == 23


def test_loader_processes_stay_across_epochs_and_end_with_the_stream() -> None:
    pids: set[int] = set()
    with closing(train_batches(23, workers=2).stream(0, 0, 3)) as stream:
        for _ in range(15):
            next(stream)
            pids |= {process.pid or 0 for process in multiprocessing.active_children()}
        assert len(pids) == 2
    assert multiprocessing.active_children() == []


def test_no_more_loader_processes_than_batches() -> None:
    with closing(train_batches(8, workers=16).stream(0, 0, 1)) as stream:
        next(stream)
        assert len(multiprocessing.active_children()) == 2


def test_evaluation_sees_every_image_once_in_order() -> None:
    seen = [(number, batch.ids.tolist()) for number, batch in eval_batches(10)]
    assert seen == [(0, [0, 1, 2, 3]), (1, [4, 5, 6, 7]), (2, [8, 9])]


@pytest.mark.parametrize("world_size", [1, 2, 3, 5, 8])
def test_evaluation_batches_do_not_depend_on_the_number_of_processes(world_size: int) -> None:
    expected = {number: batch.ids.tolist() for number, batch in eval_batches(23)}
    seen: dict[int, list[int]] = {}
    for rank in range(world_size):
        batches = eval_batches(23, rank=rank, world_size=world_size)
        assert batches.num_batches == 6
        for number, batch in batches:
            assert number not in seen
            assert number % world_size == rank
            seen[number] = batch.ids.tolist()
    assert seen == expected


def test_evaluation_keeps_its_loader_processes() -> None:
    batches = eval_batches(23, workers=2, transform=noise)
    first = content(batch for _, batch in batches)
    pids = {process.pid for process in multiprocessing.active_children()}
    second = content(batch for _, batch in batches)
    assert {process.pid for process in multiprocessing.active_children()} == pids
    assert len(pids) == 2
    assert second == first
    batches.close()
    assert multiprocessing.active_children() == []


def num_open_files() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="open files are counted in /proc")
def test_kept_batches_hold_no_open_files() -> None:
    batches = eval_batches(200, source=Numbered(200, {17: "bad"}), workers=2, skips_bad=True, kept_on=CPU)
    num_before = num_open_files()
    first = content(batch for _, batch in batches)
    gc.collect()
    assert num_open_files() < num_before + 10
    assert content(batch for _, batch in batches) == first
    assert [batch.asked.tolist() for _, batch in batches] == [list(range(n, n + 4)) for n in range(0, 200, 4)]


def test_evaluation_can_begin_anew_after_it_was_left() -> None:
    batches = eval_batches(23, workers=2)
    assert next(iter(batches))[1].ids.tolist() == [0, 1, 2, 3]
    assert flat(batch.ids.tolist() for _, batch in batches) == list(range(23))
    batches.close()


@pytest.mark.parametrize("workers", [0, 2])
def test_a_rank_without_evaluation_batches(workers: int) -> None:
    assert list(eval_batches(4, rank=1, world_size=2, workers=workers)) == []


@pytest.mark.parametrize("workers", [0, 2])
def test_a_bad_image_arrives_as_the_error_it_is(workers: int) -> None:
    for run in (
        lambda source: list(train_batches(source=source, workers=workers).stream(0, 0, 1)),
        lambda source: list(eval_batches(source=source, workers=workers)),
    ):
        with pytest.raises(InvalidDatasetError) as caught:
            run(Numbered(23, {17: "bad"}))
        assert str(caught.value) == "/set/17.jpg: the file is empty (0 bytes)"
        # Nobody waits for the error to be forgotten.
        assert multiprocessing.active_children() == []


@pytest.mark.parametrize("workers", [0, 2])
def test_bad_images_are_left_out_where_they_may_be(workers: int) -> None:
    whole = train_batches(23, transform=noise)
    order = epoch_order(23, 1, 0).tolist()
    bad = {order[5]: "bad", **{image: "bad" for image in order[8:12]}}
    skipping = train_batches(source=Numbered(23, bad), transform=noise, workers=workers, skips_bad=True)
    pairs = zip(skipping.stream(0, 0, 1), whole.stream(0, 0, 1), strict=True)
    for number, (batch, expected) in enumerate(pairs):
        good = torch.tensor([image not in bad for image in expected.ids.tolist()])
        assert batch.asked.tolist() == expected.ids.tolist()
        assert batch.ids.tolist() == expected.ids[good].tolist()
        assert batch.labels.tolist() == expected.labels[good].tolist()
        # What the others look like does not depend on those that are gone.
        assert batch.images.shape[0] == len(batch.ids)
        assert batch.images.tolist() == expected.images[good].tolist() or len(batch.ids) == 0
        assert [image for image, _ in batch.bad] == expected.ids[~good].tolist()
        assert all(reason == f"/set/{image}.jpg: the file is empty (0 bytes)" for image, reason in batch.bad)
        assert (len(batch.ids) == 0) == (number == 2)


@pytest.mark.parametrize("workers", [0, 2])
def test_evaluation_leaves_them_out_too(workers: int) -> None:
    batches = eval_batches(source=Numbered(10, {3: "bad", 8: "bad", 9: "bad"}), workers=workers, skips_bad=True)
    found = {number: (batch.ids.tolist(), [image for image, _ in batch.bad]) for number, batch in batches}
    batches.close()
    assert found == {0: ([0, 1, 2], [3]), 1: ([4, 5, 6, 7], []), 2: ([], [8, 9])}


def test_batches_before_the_bad_image_arrive() -> None:
    stream = iter(eval_batches(source=Numbered(23, {9: "bad"}), workers=2))
    assert [next(stream)[0], next(stream)[0]] == [0, 1]
    with pytest.raises(InvalidDatasetError, match=r"/set/9\.jpg"):
        next(stream)


@pytest.fixture
def brief_wait(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Torch's frames in the traceback keep its iterator; do not wait long for its process at the end."""
    monkeypatch.setattr(torch.utils.data._utils, "MP_STATUS_CHECK_INTERVAL", 0.1)
    yield
    gc.collect()


@pytest.mark.usefixtures("brief_wait")
@pytest.mark.parametrize("workers", [0, 1])
def test_unexpected_errors_keep_their_class(workers: int) -> None:
    with pytest.raises(ZeroDivisionError, match="a defect of ours"):
        list(train_batches(source=Numbered(23, {3: "defect"}), workers=workers).stream(0, 0, 1))


def test_a_loader_process_that_dies_is_named() -> None:
    with pytest.raises(DeviceError, match=r"a process that loads images died \(DataLoader worker \(pid.*data.workers"):
        list(train_batches(source=Numbered(23, {3: "killed"}), workers=1).stream(0, 0, 1))


@pytest.mark.usefixtures("brief_wait")
def test_no_room_for_a_batch_is_named() -> None:
    with pytest.raises(DeviceError, match=r"images died \(it found no room for a batch\).*docker run --shm-size=8g"):
        list(train_batches(source=Numbered(23, {3: "full"}), workers=1).stream(0, 0, 1))


@pytest.mark.usefixtures("brief_wait")
def test_no_room_for_its_labels_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: Tensor) -> None:
        raise RuntimeError("unable to allocate shared memory(shm) for file </torch_1>: No space left on device (28)")

    monkeypatch.setattr(Tensor, "share_memory_", full)  # loader processes are forked with it
    with pytest.raises(DeviceError, match=r"images died \(it found no room for a batch\)"):
        list(train_batches(workers=1).stream(0, 0, 1))


@pytest.mark.parametrize("sign", [ConnectionResetError(104, "reset"), EOFError(), FileNotFoundError(2, "no such file")])
def test_a_loader_process_that_dies_while_it_hands_over_a_batch_is_named(
    sign: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    def started(_: object) -> Iterator[Batch]:
        raise sign
        yield

    monkeypatch.setattr("runner.data.loader.loader._started", started)
    with pytest.raises(DeviceError, match=r"images died \(while it handed over a batch: .*data.workers"):
        list(train_batches(workers=1).stream(0, 0, 1))
    with pytest.raises(type(sign)):
        list(train_batches(workers=0).stream(0, 0, 1))


def test_batches_travel_to_spawned_processes() -> None:
    batches = train_batches(23)
    again = pickle.loads(pickle.dumps(batches))
    assert content(again.stream(0, 0, 1)) == content(batches.stream(0, 0, 1))


@pytest.mark.parametrize("workers", [0, 2])
def test_real_files_and_transforms(
    tmp_path: Path, write_images: Callable[..., Path], data_config: Callable[..., DataConfig], workers: int
) -> None:
    write_images(tmp_path / "train", {"ant": 10, "bee": 13})
    data = resolve_paths(data_config("folder", root=tmp_path))
    splits = open_splits(data, 1)
    train = train_batches(source=splits.train, preparation=train_transform(data), workers=workers)
    images = [image for batch in train.stream(0, 0, 1) for image in batch.images]
    assert len(images) == len(splits.train) == 18
    assert {image.shape for image in images} == {(3, 16, 16)}
    # Augmentation of small batches in this process and of others in loader processes: the same bits.
    assert content(train.stream(0, 0, 2)) == content(replace(train, workers=0).stream(0, 0, 2))
    evaluation = eval_batches(source=splits.val, preparation=eval_transform(data), workers=workers)
    labels = torch.cat([batch.labels for _, batch in evaluation])
    assert labels.tolist() == splits.val.labels.tolist()
    evaluation.close()


@pytest.mark.gpu
def test_batches_are_pinned() -> None:
    for workers in (0, 2):
        batch = next(train_batches(23, workers=workers, pin_memory=True).stream(0, 0, 1))
        assert isinstance(batch, Batch)
        assert all(part.is_pinned() for part in batch if isinstance(part, torch.Tensor))
        assert batch.images.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("draws_balanced", [False, True])
def test_the_order_of_an_epoch_is_drawn_once(monkeypatch, draws_balanced):
    drawn = []
    name = "balanced_order" if draws_balanced else "epoch_order"
    draw = getattr(loader_module, name)
    monkeypatch.setattr(loader_module, name, lambda *given: drawn.append(given[-1]) or draw(*given))
    batches = train_batches(23, draws_balanced=draws_balanced)
    for epoch in range(3):
        used = flat(ids(batches.stream(epoch, 0, epoch + 1)))
        assert batches.next_ids(epoch, 0, 23).tolist() == used
        batches.next_ids(epoch + 1, 0, 4)
    assert drawn == [0, 1, 2, 3]
    assert len(batches._orders) == 2, "no more are kept"
    assert ids(replace(batches, seed=2).stream(0, 0, 1)) != ids(batches.stream(0, 0, 1))


def test_only_an_evaluation_that_starts_processes_says_so():
    assert not eval_batches(workers=0).is_about_to_start
    batches = eval_batches(workers=1)
    assert batches.is_about_to_start
    list(batches)
    assert not batches.is_about_to_start
    batches.close()
    assert batches.is_about_to_start
