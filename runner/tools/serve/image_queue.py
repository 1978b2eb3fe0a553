"""The images that wait for a worker, of all requests, and how batches are made of them. One thread, asyncio's."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from runner.tools.serve.versions import ServedVersion


class QueueFullError(Exception):
    """More images would wait than may."""


class WorkerLostError(Exception):
    """The worker that had this image has died, twice where it had others too, or was too slow."""


class Answer(NamedTuple):
    """What a worker says about an image."""

    version: ServedVersion
    error: str | None
    """Why the image can't be scored; the other fields then have no meaning."""
    predicted: int
    """Index of the class."""
    probabilities: npt.NDArray[np.float32]
    """Shape (classes,)."""


@dataclass(eq=False)
class WaitingImage:
    """An image file that waits."""

    content: bytes
    answer: asyncio.Future[Answer]
    since: float
    """The loop's time."""
    is_suspect: bool = False
    """A worker has died with it: it is tried once more, alone, so that it takes no other image with it."""


@dataclass
class ImageQueue:
    """First in, first out; what exceeds `max_images` is refused."""

    max_images: int
    max_batch_size: int
    max_wait_seconds: float
    num_receiving: int = 0
    """Requests that have begun and have not put their images yet."""
    _waiting: deque[WaitingImage] = field(default_factory=deque)
    _filled: asyncio.Event = field(default_factory=asyncio.Event)
    _changed: asyncio.Event = field(default_factory=asyncio.Event)

    def __len__(self) -> int:
        return len(self._waiting)

    @contextmanager
    def receiving(self) -> Iterator[None]:
        """Within the block a request is received: free workers may wait for its images."""
        self.num_receiving += 1
        try:
            yield
        finally:
            self.num_receiving -= 1
            self._changed.set()

    def put(self, contents: Sequence[bytes]) -> list[asyncio.Future[Answer]]:
        """Add the images of a request, all or none.

        Raises:
            QueueFullError: there are too many.
        """
        if len(self._waiting) + len(contents) > self.max_images:
            raise QueueFullError
        loop = asyncio.get_running_loop()
        added = [WaitingImage(content, loop.create_future(), loop.time()) for content in contents]
        self._waiting.extend(added)
        self._filled.set()
        self._changed.set()
        return [image.answer for image in added]

    def put_back(self, batch: Sequence[WaitingImage], *, has_died: bool) -> None:
        """Take back the images of a batch that have no answer, first in line.

        Args:
            batch: what :meth:`take` gave.
            has_died: whether a worker has died with them: each is then tried alone, and given up if it was alone.
        """
        for image in reversed(batch):
            if image.answer.done():
                continue
            if not has_died:
                self._waiting.appendleft(image)
            elif image.is_suspect or len(batch) == 1:
                image.answer.set_exception(WorkerLostError())
            else:
                image.is_suspect = True
                self._waiting.appendleft(image)
        if self._waiting:
            self._filled.set()

    def fail_all(self) -> None:
        """Give up all images that wait, as no worker will come."""
        while self._waiting:
            image = self._waiting.popleft()
            if not image.answer.done():
                image.answer.set_exception(WorkerLostError())

    async def take(self) -> list[WaitingImage]:
        """Wait for images, and take at most a batch of them; cancelled, it has taken none.

        While other requests are being received, it waits for them until the oldest image has waited
        `max_wait_seconds`, or the batch is full.
        """
        while True:
            await self._filled.wait()
            if self._waiting and not await self._may_be_joined():
                return self._batch()
            if not self._waiting:
                self._filled.clear()

    async def _may_be_joined(self) -> bool:
        """False once there is nothing to wait for; True after something has changed."""
        if len(self._waiting) >= self.max_batch_size or not self.num_receiving or self._waiting[0].is_suspect:
            return False
        deadline = self._waiting[0].since + self.max_wait_seconds
        if asyncio.get_running_loop().time() >= deadline:
            return False
        self._changed.clear()
        with suppress(TimeoutError):
            async with asyncio.timeout_at(deadline):
                await self._changed.wait()
        return True

    def _batch(self) -> list[WaitingImage]:
        batch: list[WaitingImage] = []
        while self._waiting and len(batch) < self.max_batch_size:
            if self._waiting[0].is_suspect and batch:
                break
            image = self._waiting.popleft()
            if not image.answer.done():  # else its request was given up
                batch.append(image)
            if image.is_suspect:
                break
        if not self._waiting:
            self._filled.clear()
        return batch
