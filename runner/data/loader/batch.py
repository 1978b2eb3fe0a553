"""Makes a batch of images as a pure function of a request and the seed."""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.utils.data import Dataset, default_collate, get_worker_info

from runner.base.errors import InvalidDatasetError, RunnerError
from runner.base.keyed_random import key
from runner.data.images.stored import StoredImage
from runner.data.loader.prepare import Preparation, prepare_images
from runner.data.source import ImageSource


class BadImage(NamedTuple):
    """An image that was skipped."""

    image: int
    """Its number in its split."""
    reason: str
    """Which image it is and what is wrong with it."""


class Batch(NamedTuple):
    """The images of one process for one step."""

    images: Tensor
    """uint8 (of 16 bits float32 in [0, 1]), shape (N, channels, height, width), channels last in memory; of a batch
    without a good image (0, 3, 0, 0)."""
    labels: Tensor
    """Class indices, int64, shape (N,)."""
    ids: Tensor
    """Numbers of the images in their split, int64, shape (N,)."""
    asked: Tensor
    """Numbers of all requested images, int64: `ids` and those that were skipped, in their order."""
    bad: tuple[BadImage, ...]
    """The images that were skipped."""
    sizes: npt.NDArray[np.int32] | None = None
    """Height and width of each image before the transforms, in pixels, shape (N, 2); None with data.cache=device in
    training, where nobody asks."""


class Request(NamedTuple):
    """The arguments for making a batch."""

    epoch: int
    ids: npt.NDArray[np.int64]
    first_draw: int | None = None
    """Position of the first image in the epoch's order, if an image may be drawn more than once."""


EarlyPreparations = tuple[tuple[int, Preparation], ...]
"""Preparations of the first epochs, each with the epoch (from 0) that no longer has it, in ascending order."""


class BatchMaker(Dataset["Batch | RunnerError"]):
    """Makes batches on request, in this process or in a loader process."""

    def __init__(
        self,
        source: ImageSource,
        preparation: Preparation,
        seed: int,
        *,
        skips_bad: bool,
        early: EarlyPreparations = (),
    ) -> None:
        self._source = source
        self._preparation = preparation
        self._early = early
        self._seed = seed
        self._skips_bad = skips_bad

    def __getitem__(self, request: Request) -> Batch | RunnerError:
        # The error is returned: DataLoader would replace an error of a loader process by one with the traceback's text.
        try:
            return self.make(request)
        except RunnerError as error:
            return error

    def make(self, request: Request) -> Batch:
        """Load and transform the images; raises their errors."""
        # The random numbers of the training process must not depend on whether it loads images itself. Only the CPU's
        # generator is used here.
        preparation = next((early for end, early in self._early if request.epoch < end), self._preparation)
        sizes = np.zeros((len(request.ids), 2), np.int32)
        with torch.random.fork_rng(devices=[]):
            images = [partial(self._opened, request, place, sizes) for place in range(len(request.ids))]
            outcomes = prepare_images(images, preparation)
        good: list[Tensor] = []
        bad: list[BadImage] = []
        for image, outcome in zip(request.ids.tolist(), outcomes, strict=True):
            if isinstance(outcome, Tensor):
                good.append(outcome.permute(1, 2, 0))
            elif self._skips_bad:
                bad.append(BadImage(image, outcome))
            else:
                raise InvalidDatasetError(outcome)
        asked = torch.from_numpy(request.ids)
        is_good = [isinstance(outcome, Tensor) for outcome in outcomes]
        ids = asked[torch.tensor(is_good)] if bad else asked
        return Batch(
            # In a loader process default_collate stacks them in shared memory: private memory would be copied once
            # more, and get fragmented, by 25 MB in each process after some epochs.
            images=default_collate(good).permute(0, 3, 1, 2) if good else torch.empty((0, 3, 0, 0), dtype=torch.uint8),
            labels=_shared(torch.from_numpy(self._source.labels[ids.numpy()])),
            ids=_shared(ids),
            asked=_shared(asked),
            bad=tuple(bad),
            sizes=sizes[is_good],
        )

    def _opened(self, request: Request, place: int, sizes: npt.NDArray[np.int32]) -> StoredImage:
        """Open an image, write down its size, and seed torch's generator for its transforms."""
        image = int(request.ids[place])
        stored = self._source.open(image)
        sizes[place] = stored.height, stored.width
        # Two draws of the same image get different augmentation.
        draw = () if request.first_draw is None else (request.first_draw + place,)
        # torch's CPU generator (MT19937) uses the lower 32 of these 64 bits.
        torch.default_generator.manual_seed(key(self._seed, "augment", request.epoch, image, *draw))
        return stored


def _shared(tensor: Tensor) -> Tensor:
    """Move it to shared memory in a loader process; if that is full, torch's queue thread would lose the batch."""
    return tensor if get_worker_info() is None else tensor.share_memory_()  # type: ignore[no-untyped-call]
