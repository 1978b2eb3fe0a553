"""Exact evaluation: integer counts, the same for any number of processes."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from runner.data.loader import EvalBatches
from runner.device import Precision
from runner.dist import DistContext

_TOP_K = 5

Observer = Callable[[Tensor, Tensor, Tensor, Tensor], None]
"""Takes of a batch: image numbers N, on the CPU; on the device first guesses N, logits N × classes, losses N."""


def _ignore(ids: Tensor, guesses: Tensor, logits: Tensor, losses: Tensor) -> None:
    """For whoever wants no more than counts."""


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """Counts over a whole split, and its mean loss."""

    count: int
    correct: int
    correct_top5: int
    loss: float
    """Mean cross-entropy per image, without label smoothing."""

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
    observe: Observer = _ignore,
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
        observe: called with each batch of this process, for whoever wants more than counts.
    """
    module.eval()
    device = dist.device
    counts = torch.zeros(3, dtype=torch.int64, device=device)
    losses = torch.zeros(batches.num_batches, dtype=loss_dtype(device), device=device)
    own = iter(batches)
    for _ in range(-(-batches.num_batches // dist.world_size)):
        dist.beat()
        before_batch()
        number, batch = next(own, (None, None))
        if batch is None:
            continue  # the others have one batch more
        labels = batch.labels.to(device, non_blocking=True)
        images = batch.images.to(device, non_blocking=True, memory_format=memory_format)
        with precision.autocast(device.type):
            logits = module(normalizer(images)).float()
        per_image = functional.cross_entropy(logits, labels, reduction="none")
        losses[number] = per_image.to(losses.dtype).sum()
        guesses = first_guesses(logits)
        hits = guesses == labels[:, None]
        counts += torch.stack((torch.ones_like(labels).sum(), hits[:, 0].sum(), hits.any(dim=1).sum()))
        observe(batch.ids, guesses[:, 0], logits, per_image)
    count, correct, correct_top5 = (int(value) for value in dist.sum(counts).tolist())
    loss = math.fsum(dist.sum(losses).tolist()) / count
    return Evaluation(count=count, correct=correct, correct_top5=correct_top5, loss=loss)


def first_guesses(logits: Tensor) -> Tensor:
    """The up to five likeliest classes of each image, likeliest first: N × classes → N × min(5, classes), int64."""
    return logits.topk(min(_TOP_K, logits.shape[1]), dim=1).indices


def loss_dtype(device: torch.device) -> torch.dtype:
    """In which losses are kept: float64 wherever there is one."""
    return torch.float32 if device.type == "mps" else torch.float64
