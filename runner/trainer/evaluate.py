"""Exact evaluation: integer counts, the same for any number of processes."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional

from runner.data.batch import BadImage
from runner.data.loader import EvalBatches
from runner.device import Precision
from runner.dist import DistContext
from runner.errors import InvalidDatasetError

_TOP_K = 5


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """Counts over a whole split, and its mean loss."""

    count: int
    correct: int
    correct_top5: int
    loss: float
    """Mean cross-entropy per image, without label smoothing."""
    bad: tuple[BadImage, ...] = ()
    """Images that could not be read and are in none of these counts."""

    @property
    def top1(self) -> float:
        """Share of images whose first guess was right, in [0, 1]."""
        return self.correct / self.count

    @property
    def top5(self) -> float:
        """Share of images whose label was among the first five guesses (all, with fewer classes), in [0, 1]."""
        return self.correct_top5 / self.count


@torch.inference_mode()
def evaluate(
    module: nn.Module,
    batches: EvalBatches,
    normalizer: nn.Module,
    *,
    dist: DistContext,
    precision: Precision,
    memory_format: torch.memory_format,
    before_batch: Callable[[], None],
) -> Evaluation:
    """Evaluate a model on a split, each image exactly once over all processes.

    Batches have the same content for any number of processes, their losses are added in float64 and then, in one
    fixed order, exactly (math.fsum): neither the world size nor the order of arrival changes the last digit.

    Args:
        module: gives logits N × classes; is put into eval mode.
        batches: this process's share of the split.
        normalizer: uint8 N × 3 × H × W → float32, on the device.
        dist: the group of processes; every one of them must call this.
        precision: number format of the forward pass.
        memory_format: layout of the images, that of the module's weights.
        before_batch: called by all processes equally often; may raise to end the evaluation.

    Raises:
        InvalidDatasetError: not one image can be read.
    """
    module.eval()
    device = dist.device
    counts = torch.zeros(4, dtype=torch.int64, device=device)
    losses = torch.zeros(batches.num_batches, dtype=_loss_dtype(device), device=device)
    own = iter(batches)
    bad: list[BadImage] = []
    for _ in range(-(-batches.num_batches // dist.world_size)):
        dist.beat()
        before_batch()
        number, batch = next(own, (None, None))
        if batch is None:
            continue  # the others have one batch more
        bad += batch.bad
        counts[3] += len(batch.bad)
        if len(batch.ids) == 0:
            continue
        labels = batch.labels.to(device, non_blocking=True)
        images = batch.images.to(device, non_blocking=True, memory_format=memory_format)
        with precision.autocast(device.type):
            logits = module(normalizer(images)).float()
        losses[number] = functional.cross_entropy(logits, labels, reduction="none").to(losses.dtype).sum()
        counts[:3] += _hits(logits, labels)
    return _of_all(dist, counts, losses, bad)


def _hits(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Number of images, of right first guesses, and of labels among the first guesses."""
    guesses = logits.topk(min(_TOP_K, logits.shape[1]), dim=1).indices
    hits = guesses == labels[:, None]
    return torch.stack((torch.ones_like(labels).sum(), hits[:, 0].sum(), hits.any(dim=1).sum()))


def _of_all(dist: DistContext, counts: torch.Tensor, losses: torch.Tensor, bad: list[BadImage]) -> Evaluation:
    """What all processes have found, together."""
    count, correct, correct_top5, num_bad = (int(value) for value in dist.sum(counts).tolist())
    everywhere = sorted(dist.gather(bad)) if num_bad else []
    if count == 0:
        raise InvalidDatasetError(f"none of the {num_bad} images can be read; the first: {everywhere[0].reason}")
    loss = math.fsum(dist.sum(losses).tolist()) / count
    return Evaluation(count=count, correct=correct, correct_top5=correct_top5, loss=loss, bad=tuple(everywhere))


def _loss_dtype(device: torch.device) -> torch.dtype:
    return torch.float32 if device.type == "mps" else torch.float64
