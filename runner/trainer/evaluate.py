"""Exact evaluation: integer counts, the same for any number of processes."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from runner.base.errors import InvalidDatasetError, InvalidModelError
from runner.data.loader.batch import BadImage, Batch
from runner.data.loader.loader import EvalBatches
from runner.dist.collectives import DistContext
from runner.dist.device import Precision, to_device

_TOP_K = 5
_NUM_EXAMPLES = 3
NOT_FINITE = "the model's scores are infinite or not a number"

Observer = Callable[[Batch, Tensor, Tensor, Tensor, Tensor], None]
"""Called with each batch, whose images are on the device, as are first guesses N, logits N × classes, losses N, and
whether each image has finite scores N (images without are in no count)."""


@dataclass(frozen=True, kw_only=True)
class EvaluationResult:
    """Counts over a whole split, and the mean loss."""

    count: int
    correct: int
    correct_top5: int
    loss: float
    """Mean cross-entropy per image, without label smoothing."""
    bad: tuple[BadImage, ...] = ()
    """Images that could not be read or have no finite scores; the counts leave them out."""

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
    observe: Observer | None = None,
) -> EvaluationResult:
    """Evaluate a model on a split, each image exactly once over all processes.

    Batches have the same content for any number of processes, their losses are added in float64 and then, in one
    fixed order, exactly (math.fsum): neither the world size nor the order of arrival changes the last digit.

    Args:
        module: gives logits N × classes; is put into eval mode.
        batches: those of the split that this process evaluates.
        normalizer: pixels N × channels × H × W → float32, on the device.
        dist: the group of processes; every one of them must call this.
        precision: number format of the forward pass.
        memory_format: layout of the images, that of the module's weights.
        before_batch: called by all processes equally often; may raise to end the evaluation.
        observe: called with the results of each batch of this process.

    Raises:
        InvalidDatasetError: no image can be read.
        InvalidModelError: data.on_bad_image=error and the scores of an image are not finite, or those of all images.
    """
    module.eval()
    device, sums, own = dist.device, _Sums(batches, dist.device), iter(batches)
    for _ in range(-(-batches.num_batches // dist.world_size)):
        dist.heartbeat()
        before_batch()
        number, batch = next(own, (None, None))
        if number is None or batch is None:
            continue  # other processes have one batch more
        sums.bad += batch.bad
        if len(batch.ids) == 0:
            continue
        labels, images = to_device(batch.labels, device), to_device(batch.images, device, memory_format)
        with precision.autocast(device.type):
            logits = module(normalizer(images)).float()
        guesses, loss = first_guesses(logits), functional.cross_entropy(logits, labels, reduction="none")
        is_scored = are_finite(logits) & loss.isfinite()
        sums.add(number, (batch.ids, is_scored), labels, guesses, loss)
        if observe is not None:
            observe(batch._replace(images=images), guesses[:, 0], logits, loss, is_scored)
    return sums.of_all(dist)


class _Sums:
    """Sums over the batches of one process; only :meth:`of_all` waits for the device."""

    def __init__(self, batches: EvalBatches, device: torch.device) -> None:
        self.batches = batches
        # Images, right first guesses, labels among the first guesses, images without finite scores.
        self.counts = torch.zeros(4, dtype=torch.int64, device=device)
        self.losses = torch.zeros(batches.num_batches, dtype=loss_dtype(device), device=device)
        self.scored: list[tuple[Tensor, Tensor]] = []
        self.bad: list[BadImage] = []

    def add(self, number: int, seen: tuple[Tensor, Tensor], labels: Tensor, guesses: Tensor, loss: Tensor) -> None:
        """Count a batch; `seen`: the numbers of its images, on the CPU, and which of them have finite scores."""
        self.scored.append(seen)
        _, is_scored = seen
        hits = (guesses == labels[:, None]) & is_scored[:, None]
        self.counts += torch.stack((is_scored.sum(), hits[:, 0].sum(), hits.any(dim=1).sum(), (~is_scored).sum()))
        self.losses[number] = torch.where(is_scored, loss, 0).to(self.losses.dtype).sum()

    def of_all(self, dist: DistContext) -> EvaluationResult:
        """The result over all processes."""
        num_bad = torch.tensor([len(self.bad)], device=dist.device)
        count, correct, correct_top5, unscored, skipped = (
            int(value) for value in dist.sum(torch.cat((self.counts, num_bad))).tolist()
        )
        bad = sorted(BadImage(*item) for item in dist.gather(self.bad)) if skipped else []
        if unscored:
            unscored_images = sorted(BadImage(*item) for item in dist.gather(self._unscored()))
            if count == 0 or not self.batches.skips_bad:
                raise _not_finite(unscored_images, count + unscored)
            bad = sorted((*bad, *unscored_images))
        if count == 0:
            raise InvalidDatasetError(f"none of the {skipped} images can be read; the first: {bad[0].reason}")
        loss = math.fsum(dist.sum(self.losses).tolist()) / count
        return EvaluationResult(count=count, correct=correct, correct_top5=correct_top5, loss=loss, bad=tuple(bad))

    def _unscored(self) -> list[BadImage]:
        """This process's images without finite scores; waits for the device."""
        numbers = [number for ids, is_scored in self.scored for number in ids[~is_scored.cpu()].tolist()]
        return [BadImage(number, f"{self.batches.describe(number)}: {NOT_FINITE}") for number in numbers]


def _not_finite(images: Sequence[BadImage], num_images: int) -> InvalidModelError:
    examples = "; ".join(image.reason for image in images[:_NUM_EXAMPLES])
    if len(images) == num_images:
        return InvalidModelError(f"{NOT_FINITE} for each of {num_images} images; the first: {images[0].reason}")
    more = f"; and {len(images) - _NUM_EXAMPLES} more" if len(images) > _NUM_EXAMPLES else ""
    return InvalidModelError(
        f"{len(images)} of {num_images} images have no scores: {examples}{more}; trainer.precision=fp32 may help, "
        "data.on_bad_image=skip leaves them out"
    )


def are_finite(logits: Tensor) -> Tensor:
    """Whether all scores of an image are finite: N × classes → N, bool."""
    return logits.isfinite().all(dim=1)


def first_guesses(logits: Tensor) -> Tensor:
    """The up to five likeliest classes of each image, likeliest first: N × classes → N × min(5, classes), int64."""
    return logits.topk(min(_TOP_K, logits.shape[1]), dim=1).indices


def loss_dtype(device: torch.device) -> torch.dtype:
    """The type in which losses are summed: float64, which only MPS lacks."""
    return torch.float32 if device.type == "mps" else torch.float64
