"""Loss, hits and seconds of the epoch in progress. The sums stay on the device; only reading them waits for it."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch

from runner.base.keyed_random import digest_of_samples
from runner.dist.collectives import DistContext

_WORD = 1 << 64
# Waiting for data is a part of training; nothing else overlaps.
Part = Literal["train", "data_wait", "evaluation", "checkpoint"]
_PARTS: tuple[Part, ...] = ("train", "data_wait", "evaluation", "checkpoint")


@dataclass(frozen=True, kw_only=True)
class Totals:
    """Sums over images."""

    loss: float = 0.0
    correct: float = 0.0
    count: int = 0
    """Images that the model was trained on."""
    skipped: int = 0
    """Images that could not be read."""
    samples_digest: int = 0
    """Of the images, used or skipped, and their positions; see :func:`runner.base.keyed_random.digest_of_samples`."""

    def __sub__(self, earlier: Totals) -> Totals:
        return Totals(
            loss=self.loss - earlier.loss,
            correct=self.correct - earlier.correct,
            count=self.count - earlier.count,
            skipped=self.skipped - earlier.skipped,
            samples_digest=(self.samples_digest - earlier.samples_digest) % _WORD,
        )

    @property
    def mean_loss(self) -> float:
        """Loss per image; NaN without images."""
        return self.loss / self.count if self.count else math.nan

    @property
    def top1(self) -> float:
        """Share of images whose first guess was right, in [0, 1]; NaN without images."""
        return self.correct / self.count if self.count else math.nan


class Meter:
    """Sums over the images of one epoch."""

    def __init__(self, device: torch.device) -> None:
        # float64 counts exactly up to 2^53; MPS has no float64.
        dtype = torch.float32 if device.type == "mps" else torch.float64
        self._sums = torch.zeros(2, dtype=dtype, device=device)
        self._first_bad_step = torch.full((), -1, dtype=torch.int64, device=device)
        self._count = 0
        self._skipped = 0
        self._samples_digest = 0
        self.clock = Clock()

    def add(self, loss_sum: torch.Tensor, logits: torch.Tensor, labels: torch.Tensor, step: int) -> None:
        """Add one batch without waiting for the device.

        Args:
            loss_sum: scalar, summed over the batch.
            logits: N × classes.
            labels: int64, N.
            step: the optimizer step that the batch belongs to, from 1.
        """
        correct = (logits.argmax(dim=1) == labels).sum()
        self._sums += torch.stack((loss_sum.to(self._sums.dtype), correct.to(self._sums.dtype)))
        is_first_bad = ~torch.isfinite(loss_sum) & (self._first_bad_step < 0)
        self._first_bad_step = torch.where(is_first_bad, step, self._first_bad_step)

    def count_samples(self, first_position: int, ids: npt.NDArray[np.int64], num_skipped: int = 0) -> None:
        """Count the images of a batch of this process, from this position on; so many of them were skipped."""
        self._count += len(ids) - num_skipped
        self._skipped += num_skipped
        self._samples_digest = (self._samples_digest + digest_of_samples(first_position, ids)) % _WORD

    def read(self) -> Totals:
        """The sums of this process so far; waits for the device."""
        loss, correct = self._sums.tolist()
        return Totals(
            loss=loss,
            correct=correct,
            count=self._count,
            skipped=self._skipped,
            samples_digest=self._samples_digest,
        )

    def read_all(self, dist: DistContext) -> Totals:
        """The sums over all processes; every process must call it."""
        sums = dist.sum(self._sums.clone())
        # Sums of signed 64-bit integers wrap around modulo 2^64, as the digest does.
        signed = self._samples_digest - _WORD if self._samples_digest >= _WORD // 2 else self._samples_digest
        own = torch.tensor([self._count, self._skipped, signed], dtype=torch.int64, device=self._sums.device)
        loss, correct = sums.tolist()
        count, skipped, digest = dist.sum(own).tolist()
        return Totals(loss=loss, correct=correct, count=count, skipped=skipped, samples_digest=digest % _WORD)

    def first_bad_step(self) -> int | None:
        """The first step with an infinite or NaN loss in this process, None without one; waits for the device."""
        step = int(self._first_bad_step.item())
        return step if step >= 0 else None

    def to_json(self, dist: DistContext) -> dict[str, Any]:
        """The sums over all processes as plain values (floats survive JSON exactly); every process must call it."""
        return vars(self.read_all(dist)) | self.clock.to_json()

    def restore(self, values: dict[str, Any], *, is_main: bool) -> None:
        """Continue from the sums of :meth:`to_json`: the main process takes them over, the others begin at zero."""
        self.clock.restore(values)
        if is_main:
            self._sums.copy_(torch.tensor([values["loss"], values["correct"]], dtype=self._sums.dtype))
            self._count = values["count"]
            self._skipped = values.get("skipped", 0)  # older checkpoints lack it
            self._samples_digest = values["samples_digest"]


class Clock:
    """Wall-clock seconds of one epoch in this process, earlier attempts at the epoch included."""

    def __init__(self) -> None:
        self._seconds: dict[Part, float] = dict.fromkeys(_PARTS, 0.0)
        self._earlier_seconds = 0.0
        self._began_at = time.perf_counter()

    def start(self) -> None:
        """Begin to measure."""
        self._began_at = time.perf_counter()

    @contextmanager
    def measure(self, part: Part) -> Iterator[None]:
        """Add the time of a block to a part; work queued on a device counts in the block that waits for it."""
        started = time.perf_counter()
        try:
            yield
        finally:
            self._seconds[part] += time.perf_counter() - started

    def to_json(self) -> dict[str, float]:
        """Seconds of each part, and of the whole epoch so far, which also has the time between the parts."""
        parts = {f"{part}_seconds": seconds for part, seconds in self._seconds.items()}
        return {**parts, "epoch_seconds": self._earlier_seconds + time.perf_counter() - self._began_at}

    def restore(self, values: dict[str, Any]) -> None:
        """Add the seconds of :meth:`to_json`, those of an earlier attempt."""
        # Older checkpoints have fewer parts.
        self._seconds = {part: values.get(f"{part}_seconds", 0.0) for part in _PARTS}
        self._earlier_seconds = values.get("epoch_seconds", self._seconds["train"])
