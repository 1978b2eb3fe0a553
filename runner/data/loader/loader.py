"""Batches of images, each a pure function of (seed, epoch, batch number), prefetched by loader processes."""

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
from runner.data.loader.batch import Batch, BatchMaker, EarlyPreparations, Request
from runner.data.loader.order import TrainPlan, balanced_order, epoch_order, eval_batch, repeated_order
from runner.data.loader.prepare import Preparation
from runner.data.loader.workers import prepare_worker, signals_blocked, start_method
from runner.data.source import ImageSource

_PREFETCHED_BATCHES_PER_WORKER = 2
# Those of the current epoch and of the next one, which loader processes prefetch.
_NUM_ORDERS_KEPT = 2
# torch's messages for full shared memory.
_NO_ROOM = re.compile("unable to (allocate shared memory|resize file)")
# RuntimeError is raised by torch; the others by the socket and the shared memory of a process that has died.
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
    """Put batches into page-locked memory, from which they are copied to a GPU asynchronously."""
    skips_bad: bool = False
    """Leave out images that can't be decoded, instead of raising."""
    draws_balanced: bool = False
    """Draw images with replacement, all classes alike; see :func:`runner.data.loader.order.balanced_order`."""
    repeats: int = 1
    """How often an image comes in an epoch; see :func:`runner.data.loader.order.repeated_order`."""
    early: EarlyPreparations = ()
    """Preparations of the first epochs, in which images are smaller."""
    on_device: DeviceImages | None = None
    """Makes the batches instead of loader processes, with data.cache=device."""
    _orders: dict[int, npt.NDArray[np.int64]] = field(default_factory=dict, init=False, repr=False, compare=False)
    """Orders of the latest epochs; drawing one of millions of images takes seconds."""

    @property
    def plan(self) -> TrainPlan:
        """How an epoch is divided into global batches."""
        return TrainPlan(
            num_samples=len(self.source),
            batch_size=self.batch_size,
            world_size=self.world_size,
            last_batch=self.last_batch,
        )

    def stream(self, start_epoch: int, start_position: int, end_epoch: int) -> Generator[Batch, None, None]:
        """All batches of this process from a position in an epoch's order to the end of epoch end_epoch − 1.

        This is one iteration over all epochs: loader processes start once and prefetch the next epoch. Close the
        iterator (`contextlib.closing`) to end them early. torch's global generators are not used.

        Args:
            start_epoch: counted from 0.
            start_position: images of that epoch that were used before, over all processes.
            end_epoch: one more than the last epoch.

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
                self._maker,
                requests,
                workers=min(self.workers, most_batches),
                pin_memory=self.pin_memory,
                keep_workers=False,
            )
        )

    def next_ids(self, epoch: int, position: int, count: int) -> npt.NDArray[np.int64]:
        """The numbers of the next images of this epoch over all processes, at its end of the next epoch; read-only."""
        ids = self._order(epoch)[position : position + count]
        return ids if len(ids) else self._order(epoch + 1)[:count]

    def preview(self, num_images: int) -> Batch:
        """The first images of the first epoch over all processes, augmented as in training; made in this process."""
        return self._made_here(Request(0, self._order(0)[:num_images].copy(), 0 if self._draws_again else None))

    def seen(self, epoch: int, ids: npt.NDArray[np.int64]) -> Batch:
        """These images, augmented as in this epoch (from 0) of the training; made in this process."""
        return self._made_here(Request(epoch, ids))

    def _made_here(self, request: Request) -> Batch:
        return (self.on_device or self._maker).make(request)

    @property
    def _maker(self) -> BatchMaker:
        return BatchMaker(self.source, self.preparation, self.seed, skips_bad=self.skips_bad, early=self.early)

    @property
    def _draws_again(self) -> bool:
        """Whether an image may come more than once in an epoch."""
        return self.draws_balanced or self.repeats > 1

    def _order(self, epoch: int) -> npt.NDArray[np.int64]:
        if epoch not in self._orders:
            if len(self._orders) == _NUM_ORDERS_KEPT:
                del self._orders[min(self._orders)]
            if self.draws_balanced:
                order = balanced_order(self.source.labels, self.seed, epoch)
            elif self.repeats > 1:
                several = {"repeats": self.repeats, "apart": self.batch_size}
                order = repeated_order(len(self.source), self.seed, epoch, **several)
            else:
                order = epoch_order(len(self.source), self.seed, epoch)
            order.flags.writeable = False
            self._orders[epoch] = order
        return self._orders[epoch]

    def _requests(self, start_epoch: int, start_position: int, end_epoch: int) -> Iterator[Request]:
        plan = self.plan
        for epoch in range(start_epoch, end_epoch):
            order = self._order(epoch)
            for batch in plan.batches_from(start_position if epoch == start_epoch else 0):
                start, stop = batch.share(self.rank, self.world_size)
                yield Request(epoch, order[start:stop].copy(), start if self._draws_again else None)


class EvalBatches:
    """The evaluation batches of one process, each image once, in a fixed order, without padding.

    Batch b has the images [b·B, (b+1)·B) for any number of processes and belongs to rank b mod W, so sums per batch
    that are added in the order of b do not depend on the number of processes.
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
        """Start nothing yet: loader processes start with the first iteration.

        Args:
            source: the whole split.
            preparation: decodes and transforms an image.
            batch_size: images per batch.
            rank: of this process.
            world_size: number of processes.
            workers: loader processes; 0 loads in this process.
            pin_memory: put batches into page-locked memory.
            skips_bad: leave out images that can't be decoded, instead of raising.
            kept_on: device on which to cache the batches of this process; None for no cache.
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
        """See :meth:`runner.data.source.ImageSource.describe`."""
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
        """Iterate over the batches of this process (there may be none), each with its number.

        Loader processes stay alive for the next iteration. A random preparation gives the same result each time.

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
                    # Before the last batch is yielded, as the caller may not ask for another one.
                    self._kept, self._loader = kept, None
            yield number, batch

    def _loaded(self, numbers: range) -> Iterator[Batch]:
        if self._loader is None:
            self._loader = _make_loader(
                BatchMaker(self._source, self._preparation, seed=0, skips_bad=self.skips_bad),
                [Request(0, np.arange(*eval_batch(each, len(self._source), self._batch_size))) for each in numbers],
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


def _kept(batch: Batch, device: torch.device) -> Batch:
    # Copies: a batch of a loader process holds an open file, and page-locked memory is limited.
    return batch._replace(
        images=batch.images.to(device, copy=True),
        labels=batch.labels.to(device, copy=True),
        ids=batch.ids.clone(),
        asked=batch.asked.clone(),
    )


def load_items(
    maker: Dataset[Any], requests: Iterable[Any], *, workers: int, pin_memory: bool
) -> Generator[Any, None, None]:
    """The item that a maker makes of each request, in order, prefetched by loader processes.

    Args:
        maker: returns an item of tensors and plain values, or a RunnerError, which is raised here.
        requests: passed to the maker one by one.
        workers: loader processes; 0 makes all items in this process.
        pin_memory: put tensors into page-locked memory.

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
            # Its own generator, because DataLoader would draw a number from torch's global one.
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
        # The traceback of an error refers to this frame. Loader processes must end with the last reference to them: the
        # garbage collector may delete their queues first, and joining each process then takes 5 seconds.
        del items, loader
    if cause_of_death is not None:
        raise _dead(cause_of_death)


def death_of_loader(error: RuntimeError) -> DeviceError | None:
    """The error to raise for torch's error that a loader process died; None for any other error.

    torch raises it on SIGCHLD as well, at any point of the main thread.
    """
    cause = _cause_of_death(error)
    return None if cause is None else _dead(cause)


def _cause_of_death(error: Exception) -> str | None:
    # An exception within a loader process has the text "Caught … in DataLoader worker process 0".
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
        # Remains of an earlier, failed iteration must not be finalised by their copies in a forked process.
        gc.collect()
    with _without_advice(), signals_blocked():
        return iter(loader)


@contextmanager
def _without_advice() -> Iterator[None]:
    with warnings.catch_warnings():
        # More processes than cores are the user's choice, and useful if reading is slow.
        warnings.filterwarnings("ignore", "This DataLoader will create", UserWarning)
        # Python 3.12 and later: forking with threads may deadlock. Loaders use no lock that another thread holds at
        # that moment: the cache is locked by the forking thread only, and by threads that it waits for.
        warnings.filterwarnings("ignore", ".*use of fork", DeprecationWarning)
        yield
