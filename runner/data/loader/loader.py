"""Batches of images, each a pure function of (seed, epoch, batch number), made ahead of time by loader processes."""

from __future__ import annotations

import gc
import re
import warnings
from collections.abc import Generator, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from torch.utils.data import DataLoader, Dataset

from runner.base.errors import DeviceError, RunnerError
from runner.data.cache.on_device import DeviceImages
from runner.data.loader.balance import balanced_order
from runner.data.loader.batch import Batch, BatchMaker, Request
from runner.data.loader.order import TrainPlan, epoch_order, eval_batch
from runner.data.loader.prepare import Preparation
from runner.data.loader.workers import prepare_worker, signals_held, start_method
from runner.data.source import ImageSource

_PREFETCHED_BATCHES_PER_WORKER = 2
# Of the epoch in progress, and of the next, into which loader processes work ahead.
_NUM_ORDERS_KEPT = 2
# Torch's words where a batch finds no place in shared memory.
_NO_ROOM = re.compile("unable to (allocate shared memory|resize file)")
# RuntimeError is torch's own; the others come of the socket and the shared memory of a process that is gone.
_SIGNS_OF_DEATH = (RuntimeError, ConnectionError, EOFError, FileNotFoundError)


@dataclass(frozen=True)
class TrainBatches:
    """The training batches of one process."""

    source: ImageSource
    preparation: Preparation
    _: KW_ONLY
    seed: int
    """Seed of the experiment: order and augmentation follow from it."""
    batch_size: int
    """Images per process."""
    rank: int
    world_size: int
    last_batch: Literal["keep", "drop"]
    """See :class:`runner.data.loader.order.TrainPlan`."""
    workers: int
    """Loader processes; 0 loads in this process."""
    pin_memory: bool
    """Keep batches in page-locked memory, so that they can be copied to a GPU while it computes."""
    skips_bad: bool = False
    """Leave out images that can't be decoded, instead of raising."""
    draws_balanced: bool = False
    """Draw images with replacement, all classes alike; see :func:`runner.data.loader.balance.balanced_order`."""
    on_device: DeviceImages | None = None
    """Makes the batches in place of the loader, where all images are on the device."""
    _orders: dict[int, npt.NDArray[np.int64]] = field(default_factory=dict, init=False, repr=False, compare=False)
    """The newest that were asked for, by epoch: of millions of images, each takes seconds to draw."""

    @property
    def plan(self) -> TrainPlan:
        """How an epoch is cut into global batches."""
        return TrainPlan(
            num_samples=len(self.source),
            batch_size=self.batch_size,
            world_size=self.world_size,
            last_batch=self.last_batch,
        )

    def stream(self, start_epoch: int, start_position: int, end_epoch: int) -> Generator[Batch, None, None]:
        """All batches of this process from a position in an epoch's order to the end of epoch end_epoch − 1.

        One iteration over all epochs: loader processes start once and work ahead into the next epoch. Close the
        iterator (`contextlib.closing`) to end them early. Torch's global generators are neither read nor changed.

        Args:
            start_epoch: counted from 0.
            start_position: images of that epoch that were used before, over all processes.
            end_epoch: the first epoch that is not wanted.

        Raises:
            InvalidDatasetError: an image can't be read.
            DeviceError: a loader process died.
        """
        requests = self._requests(start_epoch, start_position, end_epoch)
        if self.on_device is not None:
            return (self.on_device.make(request) for request in requests)
        num_images = max(end_epoch - start_epoch, 0) * len(self.source) - start_position
        most_batches = max(-(-num_images // self.plan.full_size), 0)
        return _received(
            _make_loader(
                BatchMaker(self.source, self.preparation, self.seed, skips_bad=self.skips_bad),
                requests,
                workers=min(self.workers, most_batches),
                pin_memory=self.pin_memory,
                keep_workers=False,
            )
        )

    def next_ids(self, epoch: int, position: int, count: int) -> npt.NDArray[np.int64]:
        """The numbers of the next images of this epoch over all processes, or of the following one where it is over.

        Only for reading.
        """
        ids = self._order(epoch)[position : position + count]
        return ids if len(ids) else self._order(epoch + 1)[:count]

    def preview(self, num_images: int) -> Batch:
        """The first images of the first epoch, over all processes, as training will see them; made in this process."""
        return self._made_here(Request(0, self._order(0)[:num_images].copy(), 0 if self.draws_balanced else None))

    def seen(self, epoch: int, ids: npt.NDArray[np.int64]) -> Batch:
        """These images as training will see them in this epoch (from 0); made in this process."""
        return self._made_here(Request(epoch, ids))

    def _made_here(self, request: Request) -> Batch:
        maker = self.on_device or BatchMaker(self.source, self.preparation, self.seed, skips_bad=self.skips_bad)
        return maker.make(request)

    def _order(self, epoch: int) -> npt.NDArray[np.int64]:
        if epoch not in self._orders:
            if len(self._orders) == _NUM_ORDERS_KEPT:
                del self._orders[min(self._orders)]
            self._orders[epoch] = self._drawn_order(epoch)
            self._orders[epoch].flags.writeable = False
        return self._orders[epoch]

    def _drawn_order(self, epoch: int) -> npt.NDArray[np.int64]:
        if self.draws_balanced:
            return balanced_order(self.source.labels, self.seed, epoch)
        return epoch_order(len(self.source), self.seed, epoch)

    def _requests(self, start_epoch: int, start_position: int, end_epoch: int) -> Iterator[Request]:
        plan = self.plan
        for epoch in range(start_epoch, end_epoch):
            order = self._order(epoch)
            for batch in plan.batches_from(start_position if epoch == start_epoch else 0):
                start, stop = batch.share(self.rank, self.world_size)
                yield Request(epoch, order[start:stop].copy(), start if self.draws_balanced else None)


class EvalBatches:
    """The evaluation batches of one process: all its images once, in a fixed order, nothing padded.

    Batch b holds the consecutive images [b·B, (b+1)·B) for any number of processes and belongs to rank b mod W, so
    sums that are kept per batch number and added in that order do not depend on the number of processes.
    """

    def __init__(
        self,
        source: ImageSource,
        preparation: Preparation,
        *,
        batch_size: int,
        rank: int,
        world_size: int,
        workers: int,
        pin_memory: bool,
        skips_bad: bool = False,
        kept_on: torch.device | None = None,
    ) -> None:
        """Decide what to evaluate.

        Args:
            source: the whole split.
            preparation: what is done to each image.
            batch_size: images per batch.
            rank: of this process.
            world_size: number of processes.
            workers: loader processes; 0 loads in this process.
            pin_memory: keep batches in page-locked memory.
            skips_bad: leave out images that can't be decoded, instead of raising.
            kept_on: where to keep the batches of this process for the next time; None: nowhere.
        """
        self._source = source
        self._preparation = preparation
        self._batch_size = batch_size
        self._rank = rank
        self._world_size = world_size
        self._workers = workers
        self._pin_memory = pin_memory
        self.skips_bad = skips_bad
        self._kept_on = kept_on
        self._kept: list[Batch] | None = None
        self._loader: DataLoader[Batch | RunnerError] | None = None

    @property
    def num_images(self) -> int:
        """Number of images over all processes."""
        return len(self._source)

    def describe(self, image: int) -> str:
        """Which image has this number, for messages."""
        return self._source.describe(image)

    @property
    def num_batches(self) -> int:
        """Number of batches over all processes."""
        return -(-len(self._source) // self._batch_size)

    @property
    def is_about_to_start(self) -> bool:
        """Whether the next iteration starts loader processes."""
        return self._workers > 0 and self._kept is None and self._loader is None

    def __iter__(self) -> Iterator[tuple[int, Batch]]:
        """Go through the batches of this process (there may be none), each with its number.

        Loader processes stay for the next time. Should the preparation be random, it does the same each time.

        Raises:
            InvalidDatasetError: an image can't be read.
            DeviceError: a loader process died.
        """
        numbers = range(self._rank, self.num_batches, self._world_size)
        if self._kept is not None:
            yield from zip(numbers, self._kept, strict=True)
            return
        kept: list[Batch] = []
        for number, batch in zip(numbers, self._loaded(numbers), strict=True):
            if self._kept_on is not None:
                kept.append(_kept(batch, self._kept_on))
                if len(kept) == len(numbers):
                    # Before the last is handed out: nobody may ask for one more.
                    self._kept, self._loader = kept, None
            yield number, batch

    def _loaded(self, numbers: range) -> Iterator[Batch]:
        if self._loader is None:
            self._loader = _make_loader(
                BatchMaker(self._source, self._preparation, seed=0, skips_bad=self.skips_bad),
                [self._request(number) for number in numbers],
                workers=min(self._workers, len(numbers)),
                pin_memory=self._pin_memory,
                keep_workers=True,
            )
        try:
            yield from _received(self._loader)
        except Exception:
            self.close()
            raise

    def close(self) -> None:
        """End the loader processes."""
        self._loader = None

    def _request(self, number: int) -> Request:
        return Request(0, np.arange(*eval_batch(number, len(self._source), self._batch_size)))


def _kept(batch: Batch, device: torch.device) -> Batch:
    # Copies: what comes from a loader process holds an open file, and what is page-locked can't be had without end.
    return batch._replace(
        images=batch.images.to(device, copy=True),
        labels=batch.labels.to(device, copy=True),
        ids=batch.ids.clone(),
        asked=batch.asked.clone(),
    )


def made_by(
    maker: Dataset[Any], requests: Iterable[Any], *, workers: int, pin_memory: bool
) -> Generator[Any, None, None]:
    """What a maker makes of each request, in their order, here or ahead of time in loader processes.

    Args:
        maker: makes an item of tensors and plain values, or a RunnerError, which is raised here.
        requests: handed to the maker one by one.
        workers: loader processes; 0 makes everything in this process.
        pin_memory: keep tensors in page-locked memory.

    Raises:
        DeviceError: a loader process died.
    """
    return _received(_make_loader(maker, requests, workers=workers, pin_memory=pin_memory, keep_workers=False))


def _make_loader(
    maker: Dataset[Any], requests: Iterable[Any], *, workers: int, pin_memory: bool, keep_workers: bool
) -> DataLoader[Any]:
    with _without_advice():
        return DataLoader(
            maker,
            batch_size=None,  # one item is one batch already
            sampler=requests,
            collate_fn=_as_it_is,
            num_workers=workers,
            pin_memory=pin_memory,
            worker_init_fn=prepare_worker,
            prefetch_factor=_PREFETCHED_BATCHES_PER_WORKER if workers else None,
            persistent_workers=keep_workers and workers > 0,
            multiprocessing_context=start_method() if workers else None,
            # Of its own, or the loader would draw a number from torch's global one.
            generator=torch.Generator(),
        )


def _as_it_is(item: object) -> object:
    return item


def _received(loader: DataLoader[Batch | RunnerError]) -> Generator[Batch, None, None]:
    items = _started(loader)
    cause_of_death: str | None = None
    try:
        for item in items:
            if isinstance(item, RunnerError):
                raise item
            yield item
    except _SIGNS_OF_DEATH as error:
        cause_of_death = _cause_of_death(error)
        if cause_of_death is None or loader.num_workers == 0:
            raise
    finally:
        # An error refers to this frame. Loader processes must end with the last reference to them: once they are left
        # to the garbage collector, their queues may be gone first, and each is then waited for in vain for 5 seconds.
        del items, loader
    if cause_of_death is not None:
        raise _dead(cause_of_death)


def death_of_loader(error: RuntimeError) -> DeviceError | None:
    """The named error where torch says that a loader process died; None where it says something else.

    Torch also says so at the signal of the child's death, wherever the main thread happens to be.
    """
    cause = _cause_of_death(error)
    return None if cause is None else _dead(cause)


def _cause_of_death(error: Exception) -> str | None:
    # A defect of ours in such a process has another text, "Caught … in DataLoader worker process 0".
    if str(error).startswith("Caught "):
        return "it found no room for a batch" if _NO_ROOM.search(str(error)) else None
    if not isinstance(error, RuntimeError):
        return f"while it handed over a batch: {error or type(error).__name__}"
    if "DataLoader worker (pid" not in str(error):
        return None
    return str(error.__cause__ or error).partition(". ")[0].rstrip(".")


def _dead(cause: str) -> DeviceError:
    return DeviceError(
        f"a process that loads images died ({cause}); the usual cause is too little memory, or in a container too "
        "little shared memory (docker run --shm-size=8g): give more, or lower data.workers or data.batch_size"
    )


def _started(loader: DataLoader[Batch | RunnerError]) -> Iterator[Batch | RunnerError]:
    if loader.num_workers > 0:
        # What an earlier, failed iteration left must not be found and ended by a copy of it in a forked process.
        gc.collect()
    with _without_advice(), signals_held():
        return iter(loader)


@contextmanager
def _without_advice() -> Iterator[None]:
    with warnings.catch_warnings():
        # More processes than cores are the user's own choice, which may be right where reading is slow.
        warnings.filterwarnings("ignore", "This DataLoader will create", UserWarning)
        # Python 3.12 and later: forking with threads may deadlock. Loaders touch nothing that other threads lock
        # at that moment: kept images are locked by the thread that forks, and by those that it waits for.
        warnings.filterwarnings("ignore", ".*use of fork", DeprecationWarning)
        yield
