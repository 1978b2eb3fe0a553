"""One batch of images, made on request: a pure function of the request and the seed."""

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
from runner.data.loader.prepare import Preparation, prepared
from runner.data.source import ImageSource


class BadImage(NamedTuple):
    """An image that was skipped."""

    image: int
    """Its number in its split."""
    reason: str
    """Which image it is and what is wrong with it."""


class Batch(NamedTuple):
    """Images of one step of one process."""

    images: Tensor
    """uint8, shape (N, 3, height, width), channels last in memory; of a batch without a good image (0, 3, 0, 0)."""
    labels: Tensor
    """Class indices, int64, shape (N,)."""
    ids: Tensor
    """Numbers of the images in their split, int64, shape (N,)."""
    asked: Tensor
    """Numbers of the images that were to be in the batch, int64: `ids` and those that were skipped, in their order."""
    bad: tuple[BadImage, ...]
    """Those that were skipped."""


class Request(NamedTuple):
    """All that it takes to make a batch."""

    epoch: int
    ids: npt.NDArray[np.int64]
    first_draw: int | None = None
    """Position in the epoch's order of the first image, where an image may be drawn more than once."""


class BatchMaker(Dataset["Batch | RunnerError"]):
    """Makes batches on request, here or in a loader process."""

    def __init__(self, source: ImageSource, preparation: Preparation, seed: int, *, skips_bad: bool) -> None:
        self._source = source
        self._preparation = preparation
        self._seed = seed
        self._skips_bad = skips_bad

    def __getitem__(self, request: Request) -> Batch | RunnerError:
        # An error travels as a value: raised in a loader process it would arrive as another one, of its traceback.
        try:
            return self.make(request)
        except RunnerError as error:
            return error

    def make(self, request: Request) -> Batch:
        """Load and transform the images; raises what goes wrong."""
        # Only the CPU's generator is used here. What the training process draws from it must not depend on whether
        # images are loaded in it.
        with torch.random.fork_rng(devices=[]):
            images = [partial(self._opened, request, place) for place in range(len(request.ids))]
            outcomes = prepared(images, self._preparation)
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
        ids = asked[torch.tensor([isinstance(outcome, Tensor) for outcome in outcomes])] if bad else asked
        return Batch(
            # In a loader process this stacks them in shared memory: from memory of its own they would be copied once
            # more, and leave holes between what else it keeps, 25 MB in each after some epochs.
            images=default_collate(good).permute(0, 3, 1, 2) if good else torch.empty((0, 3, 0, 0), dtype=torch.uint8),
            labels=_shared(torch.from_numpy(self._source.labels[ids.numpy()])),
            ids=_shared(ids),
            asked=_shared(asked),
            bad=tuple(bad),
        )

    def _opened(self, request: Request, place: int) -> StoredImage:
        """An image, for which torch's generator is seeded."""
        image = int(request.ids[place])
        stored = self._source.open(image)
        # Two draws of one image are to look different.
        draw = () if request.first_draw is None else (request.first_draw + place,)
        # Of these 64 bits torch's generator on the CPU (MT19937) uses the lower 32.
        torch.default_generator.manual_seed(key(self._seed, "augment", request.epoch, image, *draw))
        return stored


def _shared(tensor: Tensor) -> Tensor:
    """In a loader process, in shared memory: the thread that hands it over would lose the batch if there is no room."""
    return tensor if get_worker_info() is None else tensor.share_memory_()  # type: ignore[no-untyped-call]
