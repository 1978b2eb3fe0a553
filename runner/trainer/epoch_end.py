"""The end of an epoch: exact evaluation, a row of metrics, the best so far, a checkpoint."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import nn

from runner.base.errors import InvalidDatasetError, InvalidModelError, NonFiniteLossError
from runner.base.keyed_random import digest_of_samples
from runner.run.checkpoint import checkpoint_name
from runner.trainer.evaluate import Evaluation, evaluate
from runner.trainer.meter import Clock, Meter, Totals
from runner.trainer.progress import Best, Weights

if TYPE_CHECKING:
    from runner.trainer.loop import Trainer


def finish_epoch(trainer: Trainer) -> None:
    """Finish the epoch in progress, be it whole or cut short by trainer.max_steps; every process must call it.

    Raises:
        NonFiniteLossError: the training or validation loss is infinite or not a number.
        InvalidDatasetError: too many images, or all, can't be read.
        StoppedOnRequest: after everything was saved.
    """
    meter, progress = trainer.meter, trainer.progress
    with meter.clock.runs_for("train"):  # the device may still be at it
        trainer.check_finite()
        train = meter.read_all(trainer.dist)
    _check_ledger(trainer, train)
    if train.count == 0:
        raise InvalidDatasetError(f"none of the {train.skipped} training images of this epoch can be read")
    is_cut = not trainer.train_batches.plan.is_over(progress.position)
    if is_cut:
        # A run that is given more steps goes on from here, in the middle of the epoch: this evaluation and its row
        # are then as if they had not been.
        trainer.save()
    name = checkpoint_name(progress.epoch + (not is_cut), progress.step)
    with meter.clock.runs_for("evaluation"):
        raw = _evaluate(trainer, trainer.model)
        ema = _evaluate(trainer, trainer.ema.module) if trainer.ema is not None else None
    progress.epoch += 1
    progress.position = 0
    trainer.bad_train.begin()
    trainer.meter = Meter(trainer.dist.device)
    _judge(trainer, raw, ema, name)
    progress.count_patience(min(raw.loss, ema.loss) if ema is not None else raw.loss)
    if trainer.recorder is not None:
        splits = (trainer.bad_train, trainer.bad_val)
        trainer.recorder.epoch(_row(trainer, train, raw, ema) | _speed(train, meter.clock), progress.best)
        trainer.recorder.warn(summary for split in splits if (summary := split.summary()))
    if not is_cut:
        trainer.save()
    elif progress.best is not None and progress.best.checkpoint == name and trainer.dist.is_main:
        trainer.writer.point_best(name)


def _check_ledger(trainer: Trainer, train: Totals) -> None:
    """The images that were used, over all processes and attempts, are those that seed and epoch ask for."""
    if trainer.dist.is_main:
        progress = trainer.progress
        asked = trainer.train_batches.next_ids(progress.epoch, 0, progress.position)
        num_asked = train.count + train.skipped
        assert num_asked == len(asked), f"{num_asked} images were asked for in this epoch, not {len(asked)}"
        assert train.samples_digest == digest_of_samples(0, asked), "other images were used than the seed asks for"


def _evaluate(trainer: Trainer, module: nn.Module) -> Evaluation:
    if trainer.val_batches.is_about_to_start:
        # Its loader processes would keep open for the rest of the run, and on the disk, what is just being written.
        trainer.writer.wait()
    trainer.dist.share_buffers(module)
    try:
        result = evaluate(
            module,
            trainer.val_batches,
            trainer.normalizer,
            dist=trainer.dist,
            precision=trainer.precision,
            memory_format=trainer.memory_format,
            before_batch=lambda: trainer.heed_requests(may_save=False),
        )
    except InvalidModelError as error:
        raise NonFiniteLossError(
            f"the validation loss became infinite or not a number after epoch {trainer.progress.epoch + 1}, step "
            f"{trainer.progress.step}, learning rate {trainer.learning_rate:.3g} ({error}); try a lower optimizer.lr "
            "or trainer.precision=fp32"
        ) from error
    trainer.bad_val.begin()
    trainer.bad_val.meet(result.bad)
    return result


def _row(trainer: Trainer, train: Totals, raw: Evaluation, ema: Evaluation | None) -> dict[str, Any]:
    row: dict[str, Any] = {
        "epoch": trainer.progress.epoch,
        "step": trainer.progress.step,
        "lr": trainer.learning_rate,
        "train_images": train.count,
        "train_images_skipped": train.skipped,
        "train_images_digest": f"{train.samples_digest:016x}",
        "train_loss": train.mean_loss,
        "train_top1": train.top1,
        "val_images_skipped": len(raw.bad),
        "val_loss": raw.loss,
        "val_top1": raw.top1,
        "val_top5": raw.top5,
    }
    if ema is not None:
        row |= {"val_ema_loss": ema.loss, "val_ema_top1": ema.top1, "val_ema_top5": ema.top5}
    return row


def _speed(train: Totals, clock: Clock) -> dict[str, float]:
    seconds = clock.to_json()
    return {"train_images_per_second": train.count / seconds["train_seconds"], **seconds}


def _judge(trainer: Trainer, raw: Evaluation, ema: Evaluation | None, name: str) -> None:
    """Keep the best of all epochs, be it of the raw weights or of their average; a tie keeps the earlier.

    Args:
        trainer: whose progress this is.
        raw: of the weights.
        ema: of their moving average, where there is one.
        name: of the checkpoint that holds, or will hold, these weights.
    """
    metric, progress = trainer.config.trainer.monitor, trainer.progress
    candidates: list[tuple[Weights, Evaluation]] = [("raw", raw)]
    if ema is not None:
        candidates.append(("ema", ema))
    for weights, result in candidates:
        value = float(getattr(result, metric.removeprefix("val_")))
        if progress.improves(metric, value):
            progress.best = Best(metric=metric, value=value, epoch=progress.epoch, checkpoint=name, weights=weights)
