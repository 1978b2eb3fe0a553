"""The end of an epoch: its exact evaluation, and the row of metrics.jsonl."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import nn

from runner.base.errors import InvalidModelError, NonFiniteLossError
from runner.run.checkpoint import checkpoint_name
from runner.run.checkpoint_writer import CheckpointWriter
from runner.trainer.evaluate import EvaluationResult, evaluate
from runner.trainer.meter import Totals
from runner.trainer.progress import Best, Weights
from runner.trainer.state import Placement, TrainingState
from runner.trainer.training_images import TrainingImages


@dataclass(frozen=True, kw_only=True)
class EpochResult:
    """Metrics of an epoch, be it whole or cut short by trainer.max_steps."""

    epoch: int
    """Number of the epoch, from 1."""
    step: int
    """Optimizer steps since the start of the run."""
    learning_rate: float
    """Of the last step."""
    train: Totals
    raw: EvaluationResult
    """The weights on the validation split."""
    ema: EvaluationResult | None
    """Their moving average on the validation split; None without one."""
    checkpoint: str
    """Name of the checkpoint that has, or will have, these weights."""

    @property
    def val_loss(self) -> float:
        """The lower one of the weights' and their average's, for trainer.patience."""
        return self.raw.loss if self.ema is None else min(self.raw.loss, self.ema.loss)

    def candidates(self, metric: str) -> list[Best]:
        """The weights, and their average where there is one, as candidates for the best checkpoint by a metric."""
        results: list[tuple[Weights, EvaluationResult]] = [("raw", self.raw)]
        if self.ema is not None:
            results.append(("ema", self.ema))
        field = metric.removeprefix("val_")
        return [
            Best(
                metric=metric,
                value=float(getattr(result, field)),
                epoch=self.epoch,
                checkpoint=self.checkpoint,
                weights=weights,
            )
            for weights, result in results
        ]

    def row(self, seconds: dict[str, float]) -> dict[str, Any]:
        """The epoch's row of metrics.jsonl; `seconds` come from :meth:`runner.trainer.meter.Clock.to_json`."""
        row: dict[str, Any] = {
            "epoch": self.epoch,
            "step": self.step,
            "lr": self.learning_rate,
            "train_images": self.train.count,
            "train_images_skipped": self.train.skipped,
            "train_images_digest": f"{self.train.samples_digest:016x}",
            "train_loss": self.train.mean_loss,
            "train_top1": self.train.top1,
            "val_images_skipped": len(self.raw.bad),
            "val_loss": self.raw.loss,
            "val_top1": self.raw.top1,
            "val_top5": self.raw.top5,
        }
        if self.ema is not None:
            row |= {"val_ema_loss": self.ema.loss, "val_ema_top1": self.ema.top1, "val_ema_top5": self.ema.top5}
        return row | {"train_images_per_second": self.train.count / seconds["train_seconds"], **seconds}


def evaluate_epoch(
    state: TrainingState,
    images: TrainingImages,
    placement: Placement,
    train: Totals,
    *,
    writer: CheckpointWriter,
    before_batch: Callable[[], None],
) -> EpochResult:
    """Evaluate the weights after the steps of an epoch, without changing the training. Every process must call it.

    Args:
        state, images, placement: of the training.
        train: sums over the epoch's steps and all processes.
        writer: waited for before loader processes of the validation split start.
        before_batch: called by all processes equally often; may raise to end the evaluation.

    Raises:
        NonFiniteLossError: the validation loss is infinite or not a number.
        InvalidDatasetError: no image can be read.
    """
    progress, modules = state.progress, [state.model, *([state.ema.module] if state.ema is not None else [])]
    try:
        raw, *averaged = [evaluate_module(module, images, placement, writer, before_batch) for module in modules]
    except InvalidModelError as error:
        raise NonFiniteLossError(
            f"the validation loss became infinite or not a number after {state.place()} ({error}); try a lower "
            "optimizer.lr or trainer.precision=fp32"
        ) from error
    return EpochResult(
        epoch=progress.epoch + 1,
        step=progress.step,
        learning_rate=state.learning_rate,
        train=train,
        raw=raw,
        ema=averaged[0] if averaged else None,
        checkpoint=checkpoint_name(progress.epoch + images.is_epoch_over(progress), progress.step),
    )


def evaluate_module(
    module: nn.Module,
    images: TrainingImages,
    placement: Placement,
    writer: CheckpointWriter,
    before_batch: Callable[[], None],
) -> EvaluationResult:
    """Evaluate a model on the validation split; see :func:`evaluate_epoch`."""
    if images.val_batches.is_about_to_start:
        # Its loader processes would inherit the files that are being written, and keep them open until the run ends.
        writer.wait()
    placement.dist.broadcast_buffers(module)
    return evaluate(
        module,
        images.val_batches,
        images.normalizer,
        dist=placement.dist,
        precision=placement.precision,
        memory_format=placement.memory_format,
        before_batch=before_batch,
    )
