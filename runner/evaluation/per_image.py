"""One pass over an evaluation split that keeps the result of each image."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from runner.base.console import ProgressLine
from runner.base.errors import StoppedOnRequest
from runner.base.stop import StopRequest
from runner.data.loader.batch import Batch
from runner.data.loader.loader import EvalBatches
from runner.data.source import ImageSource
from runner.dist.collectives import DistContext, Vote
from runner.dist.device import Precision, to_device
from runner.evaluation.image_features import ImageFeatures
from runner.trainer.bad_images import BadImages
from runner.trainer.evaluate import EvaluationResult, evaluate, loss_dtype

_SECONDS_BETWEEN_LINES = 10.0
NUM_LEVELS = 2**20
"""The levels of brightness above black."""


@dataclass(frozen=True, kw_only=True)
class Scorer:
    """A model with its normalisation, device and precision, in one process."""

    module: nn.Module
    """float32 N × 3 × H × W → logits N × classes."""
    normalizer: nn.Module
    """pixels N × channels × H × W → float32, on the device."""
    dist: DistContext
    precision: Precision
    memory_format: torch.memory_format

    def logits(self, images: Tensor) -> Tensor:
        """pixels N × channels × H × W on the CPU → float32 logits N × classes on the device."""
        device = self.dist.device
        pixels = to_device(images, device, self.memory_format)
        with self.precision.autocast(device.type):
            logits: Tensor = self.module(self.normalizer(pixels))
        return logits.float()


@dataclass(frozen=True, kw_only=True)
class EvaluationSplit:
    """A split that is evaluated, as one of the processes sees it."""

    source: ImageSource
    """All images of the split."""
    batches: EvalBatches
    """The batches of this process."""
    bad_images: BadImages
    """Counts the images of the split that can't be read."""


@dataclass(frozen=True, kw_only=True)
class PerImageResults:
    """The result of each image that could be read; the same in every process."""

    counts: EvaluationResult
    images: npt.NDArray[np.int64]
    """Numbers of these images in their split, ascending, shape (N,)."""
    predicted: npt.NDArray[np.int64]
    """Class index with the highest logit, shape (N,)."""
    probability: npt.NDArray[np.float64]
    """Probability of that class, in [0, 1], shape (N,)."""
    loss: npt.NDArray[np.float64]
    """Cross-entropy, shape (N,)."""
    brightness: npt.NDArray[np.float64]
    """Mean of all pixels and channels before normalisation, in [0, 1], shape (N,)."""
    sizes: npt.NDArray[np.int32]
    """Height and width before the transforms, in pixels, shape (N, 2)."""

    @property
    def features(self) -> ImageFeatures:
        """What a profile counts."""
        return ImageFeatures(
            brightness=self.brightness,
            width=self.sizes[:, 1],
            height=self.sizes[:, 0],
            confidence=self.probability,
            predicted=self.predicted,
        )


class _Table:
    """One row per image of the split, on the device; only one process fills in a row, in the others it stays 0."""

    def __init__(self, num_images: int, device: torch.device) -> None:
        self.guess = torch.zeros(
            num_images, dtype=torch.int64, device=device
        )  # class index + 1; 0: not in this process
        self.probability, self.loss = torch.zeros(2, num_images, dtype=loss_dtype(device), device=device)
        self.levels = torch.zeros(num_images, dtype=torch.int32, device=device)
        self.sizes = torch.zeros(num_images, 2, dtype=torch.int32, device=device)

    def fill(self, batch: Batch, guesses: Tensor, logits: Tensor, losses: Tensor, is_scored: Tensor) -> None:
        """Fill in the rows of a batch, without waiting for the device."""
        assert batch.sizes is not None, "an evaluation's batches are made by a BatchMaker"
        ids = to_device(batch.ids, self.guess.device)
        self.levels[ids] = brightness_levels(batch.images).to(torch.int32)
        self.sizes[ids] = to_device(torch.from_numpy(batch.sizes), self.guess.device)
        self.guess[ids] = torch.where(is_scored, guesses + 1, 0)
        probability = logits.softmax(dim=1).gather(1, guesses[:, None])[:, 0]
        self.probability[ids] = torch.where(is_scored, probability, 0).to(self.probability.dtype)
        self.loss[ids] = torch.where(is_scored, losses, 0).to(self.loss.dtype)


def brightness_levels(images: Tensor) -> Tensor:
    """The brightness of each image: the mean of its pixels over all channels.

    Sums of integers are the same in any order of adding, on any device.

    Args:
        images: as the model sees them before normalisation, N × channels × H × W: uint8, or of 16 bits float32 in
            [0, 1].

    Returns:
        int64, shape (N,): from 0, black, to :data:`NUM_LEVELS`, white.
    """
    is_deep = images.is_floating_point()
    levels = (images * 65535).round() if is_deep else images
    largest = images[0].numel() * (65535 if is_deep else 255)
    if levels.dtype == torch.uint8 and levels.device.type == "cpu":  # by NumPy 17 times as fast as by torch
        total = torch.from_numpy(levels.numpy().sum(axis=(1, 2, 3), dtype=np.int64))
    else:
        total = levels.sum(dim=(1, 2, 3), dtype=torch.int64)
    return total * NUM_LEVELS // largest


def evaluate_per_image(
    scorer: Scorer, split: EvaluationSplit, *, stop: StopRequest, what: str, line: ProgressLine | None
) -> PerImageResults:
    """Evaluate a model on a split and keep the result of each image; every process must call it.

    Each process holds 36 bytes per image of the split. The results are combined by a sum over the processes, which is
    exact: of each image one process has the values and all others have zeros.

    Args:
        scorer: the model.
        split: the images.
        stop: polled between batches; all processes stop at the same batch.
        what: name of the split, for the progress line and the message of a stop.
        line: the progress line, in the main process.

    Raises:
        StoppedOnRequest: when any process was asked to stop.
        InvalidDatasetError: an image can't be read, and data.on_bad_image is error; or too many can't.
    """
    dist, batches = scorer.dist, split.batches
    table = _Table(len(split.source), dist.device)
    try:
        counts = evaluate(
            scorer.module,
            batches,
            scorer.normalizer,
            dist=dist,
            precision=scorer.precision,
            memory_format=scorer.memory_format,
            before_batch=_between_batches(dist, stop, batches.num_batches, what, line),
            observe=table.fill,
        )
    finally:
        batches.close()
        if line is not None:
            line.clear()
    split.bad_images.reset()
    split.bad_images.add(counts.bad)
    guess, probability, loss, levels, sizes = (dist.sum(values).cpu().numpy() for values in vars(table).values())
    (images,) = np.nonzero(guess)
    return PerImageResults(
        counts=counts,
        images=images,
        predicted=guess[images] - 1,
        probability=probability[images].astype(np.float64),
        loss=loss[images].astype(np.float64),
        brightness=levels[images] / NUM_LEVELS,
        sizes=sizes[images],
    )


def _between_batches(
    dist: DistContext, stop: StopRequest, num_batches: int, what: str, line: ProgressLine | None
) -> Callable[[], None]:
    requests, num_rounds, done, shown_at = Vote(dist), -(-num_batches // dist.world_size), 0, time.monotonic()

    def poll_and_report() -> None:
        nonlocal done, shown_at
        received = requests.cast(signal.Signals[stop.received].value if stop.received else 0)
        if received:
            raise StoppedOnRequest(f"stopped on {signal.Signals(received).name} while evaluating on {what}")
        now = time.monotonic()
        if line is not None and (line.is_live or now - shown_at > _SECONDS_BETWEEN_LINES):
            line.update(f"evaluating on {what}", "", done, num_rounds, unit="batch")
            shown_at = now
        done += 1

    return poll_and_report
