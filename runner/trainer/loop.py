"""The loop over epochs and steps."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.optim.swa_utils import AveragedModel

from runner.checkpoint import CheckpointStore, checkpoint_name
from runner.console import LOGGER
from runner.data.loader import Batch, EvalBatches, TrainBatches
from runner.device import Precision
from runner.dist import DistContext, Vote
from runner.errors import NonFiniteLossError, StoppedOnRequest
from runner.keyed_random import key
from runner.optimizer import named_state, peak_learning_rate
from runner.schedule import learning_rate
from runner.schema import Config
from runner.stop import StopRequest
from runner.trainer.backbone import set_training_mode
from runner.trainer.evaluate import Evaluation, evaluate
from runner.trainer.meter import Meter, Totals
from runner.trainer.progress import Best, Progress, Weights
from runner.trainer.recorder import Recorder, StepReport

CHECKPOINT_FORMAT = 1


class Trainer:
    """Trains one model; assembled by `runner.assemble`, which decides what each part is."""

    def __init__(
        self,
        *,
        config: Config,
        dist: DistContext,
        precision: Precision,
        classes: tuple[str, ...],
        model: nn.Module,
        head: nn.Module | None,
        ema: AveragedModel | None,
        normalizer: nn.Module,
        memory_format: torch.memory_format,
        optimizer: torch.optim.Optimizer,
        train_batches: TrainBatches,
        val_batches: EvalBatches,
        checkpoints: CheckpointStore,
        stop: StopRequest,
        recorder: Recorder | None,
    ) -> None:
        self.config = config
        self.dist = dist
        self.precision = precision
        self.classes = classes
        self.model = model
        self.replica = model  # what computes: the model itself, or what wraps it to exchange gradients
        self.replica_is_frozen: bool | None = None  # whether it was wrapped with a frozen backbone; None: not yet
        self.head = head
        self.ema = ema
        self.normalizer = normalizer
        self.memory_format = memory_format
        self.optimizer = optimizer
        self.scaler = torch.amp.GradScaler(dist.device.type, enabled=precision.name == "fp16")
        self.train_batches = train_batches
        self.val_batches = val_batches
        self.checkpoints = checkpoints
        self.stop = stop
        self.stop_vote = Vote(dist)
        self.recorder = recorder
        self.progress = Progress()
        self.meter = Meter(dist.device)
        self.learning_rate = 0.0
        self.peak = peak_learning_rate(config.optimizer, dist.world_size)
        self.data_wait_seconds = 0.0

    @property
    def steps_per_epoch(self) -> int:
        """Optimizer steps of a whole epoch."""
        return -(-self.train_batches.batches_per_epoch // self.config.trainer.accumulate_steps)

    def fit(self) -> None:
        """Train until the last epoch, the last step, or until patience ends.

        Raises:
            StoppedOnRequest: after everything was saved.
            NonFiniteLossError: the last good checkpoint stands.
        """
        progress = self.progress
        stream = self.train_batches.stream(progress.epoch, progress.batch, self.config.trainer.epochs)
        while not self._is_finished():
            started = time.perf_counter()
            self._train_epoch(stream)
            train_seconds = time.perf_counter() - started
            self._finish_epoch(started, train_seconds)

    def _is_finished(self) -> bool:
        trainer, progress = self.config.trainer, self.progress
        if trainer.patience is not None and progress.epochs_without_improvement >= trainer.patience:
            LOGGER.info(
                "stopped early: %d epochs without a better validation loss than %.4f (trainer.patience)",
                progress.epochs_without_improvement,
                progress.lowest_val_loss,
            )
            return True
        return progress.epoch >= trainer.epochs or self._has_all_steps()

    def _has_all_steps(self) -> bool:
        max_steps = self.config.trainer.max_steps
        return max_steps is not None and self.progress.step >= max_steps

    # Training ------------------------------------------------------------------------------------------------

    def _train_epoch(self, stream: Iterator[Batch]) -> None:
        progress, trainer = self.progress, self.config.trainer
        is_frozen = progress.epoch < trainer.freeze_backbone_epochs
        set_training_mode(self.model, self.head if is_frozen else None)
        self._replicate(is_frozen)
        reported, reported_at = self.meter.read(), time.perf_counter()
        self.data_wait_seconds = 0.0
        while progress.batch < self.train_batches.batches_per_epoch and not self._has_all_steps():
            self._check_stop()
            self._optimizer_step(stream)
            if progress.step % trainer.print_every == 0:
                totals, now = self.meter.read(), time.perf_counter()
                self._report(totals - reported, now - reported_at)
                reported, reported_at = totals, now
            is_within = progress.batch < self.train_batches.batches_per_epoch
            if trainer.checkpoint_every and progress.step % trainer.checkpoint_every == 0 and is_within:
                self._save()

    def _optimizer_step(self, stream: Iterator[Batch]) -> None:
        progress = self.progress
        first, limit = progress.batch, self.train_batches.batches_per_epoch
        numbers = range(first, min(first + self.config.trainer.accumulate_steps, limit))
        num_images = sum(self.train_batches.global_batch_size(number) for number in numbers)
        self._set_learning_rate()
        for number in numbers:
            waiting = time.perf_counter()
            batch = next(stream)
            self.data_wait_seconds += time.perf_counter() - waiting
            with self._exchange_gradients(when=number == numbers[-1]):
                self._backward(batch, number, self.dist.world_size / num_images)
        self._update()
        progress.batch += len(numbers)
        progress.step += 1

    def _replicate(self, is_frozen: bool) -> None:
        """Exchange the gradients of what learns now; what is wrapped stays so until more begins to learn."""
        if self.replica_is_frozen is is_frozen:
            return
        config = self.config
        # A backward pass without an exchange is another graph, compiled code hides it, and of a user's model we can't
        # know whether each step computes the same.
        is_plain = config.trainer.accumulate_steps == 1 and not config.trainer.compile
        is_graph_static = is_plain and config.model.family in ("resnet", "densenet")
        self.replica = self.dist.replicate(self.model, is_graph_static=is_graph_static)
        self.replica_is_frozen = is_frozen

    def _backward(self, batch: Batch, number: int, weight: float) -> None:
        """Add a batch's gradients; `weight` turns sums over images into the mean over all of a step's images.

        The processes' gradients are averaged, so the weight is world size / images of the step on all of them.
        """
        self.dist.beat()
        device = self.dist.device
        # Dropout and the like draw from (seed, epoch, batch, rank), so that there is no generator state to save.
        torch.manual_seed(key(self.config.seed, "step", self.progress.epoch, number, self.dist.rank))
        images = batch.images.to(device, non_blocking=True, memory_format=self.memory_format)
        labels = batch.labels.to(device, non_blocking=True)
        with self.precision.autocast(device.type):
            logits = self.replica(self.normalizer(images))
        logits = logits.float()
        smoothing = self.config.trainer.label_smoothing
        loss = functional.cross_entropy(logits, labels, reduction="sum", label_smoothing=smoothing)
        self.scaler.scale(loss * weight).backward()  # type: ignore[no-untyped-call]
        self.meter.add(loss.detach(), logits.detach(), labels, self.progress.step + 1)

    def _update(self) -> None:
        clip_norm = self.config.trainer.clip_norm
        if clip_norm is not None:
            self.scaler.unscale_(self.optimizer)
            nn.utils.clip_grad_norm_(self.model.parameters(), clip_norm)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad(set_to_none=True)
        if self.ema is not None:
            self.ema.update_parameters(self.model)

    def _set_learning_rate(self) -> None:
        self.learning_rate = learning_rate(
            self.config.schedule,
            peak=self.peak,
            epoch=self.progress.step / self.steps_per_epoch,
            epochs=self.config.trainer.epochs,
        )
        for group in self.optimizer.param_groups:
            group["lr"] = self.learning_rate

    def _exchange_gradients(self, *, when: bool) -> AbstractContextManager[None]:
        no_sync = getattr(self.replica, "no_sync", None)
        return nullcontext() if when or no_sync is None else no_sync()

    def _report(self, interval: Totals, seconds: float) -> None:
        self._check_finite()
        if self.recorder is None:
            return
        accumulate = self.config.trainer.accumulate_steps
        self.recorder.step(
            StepReport(
                epoch=self.progress.epoch + 1,
                step=self.progress.step,
                step_in_epoch=-(-self.progress.batch // accumulate),
                steps_per_epoch=self.steps_per_epoch,
                learning_rate=self.learning_rate,
                loss=interval.mean_loss,
                top1=interval.top1,
                images_per_second=interval.count * self.dist.world_size / seconds,
            )
        )

    def _check_finite(self) -> None:
        self.meter.check_finite(self.dist, epoch=self.progress.epoch + 1, learning_rate=self.learning_rate)

    # Evaluation and records ----------------------------------------------------------------------------------

    def _finish_epoch(self, started: float, train_seconds: float) -> None:
        self._check_finite()
        train = self.meter.read_all(self.dist)
        raw = self._evaluate(self.model)
        ema = self._evaluate(self.ema.module) if self.ema is not None else None
        progress = self.progress
        progress.epoch += 1
        progress.batch = 0
        self.meter = Meter(self.dist.device)
        row = self._row(train, raw, ema)
        self._judge(raw, ema)
        progress.count_patience(min(raw.loss, ema.loss) if ema is not None else raw.loss)
        row |= {
            "train_images_per_second": train.count / train_seconds,
            "train_seconds": train_seconds,
            "data_wait_seconds": self.data_wait_seconds,
            "epoch_seconds": time.perf_counter() - started,
        }
        if self.recorder is not None:
            self.recorder.epoch(row, progress.best)
        self._save()

    def _evaluate(self, module: nn.Module) -> Evaluation:
        self.dist.share_buffers(module)
        result = evaluate(
            module,
            self.val_batches,
            self.normalizer,
            dist=self.dist,
            precision=self.precision,
            memory_format=self.memory_format,
        )
        if not -float("inf") < result.loss < float("inf"):
            raise NonFiniteLossError(
                f"the validation loss became infinite or not a number after epoch {self.progress.epoch + 1}, step "
                f"{self.progress.step}, learning rate {self.learning_rate:.3g}; try a lower optimizer.lr or "
                "trainer.precision=fp32"
            )
        return result

    def _row(self, train: Totals, raw: Evaluation, ema: Evaluation | None) -> dict[str, Any]:
        row: dict[str, Any] = {
            "epoch": self.progress.epoch,
            "step": self.progress.step,
            "lr": self.learning_rate,
            "train_loss": train.mean_loss,
            "train_top1": train.top1,
            "val_loss": raw.loss,
            "val_top1": raw.top1,
            "val_top5": raw.top5,
        }
        if ema is not None:
            row |= {"val_ema_loss": ema.loss, "val_ema_top1": ema.top1, "val_ema_top5": ema.top5}
        return row

    def _judge(self, raw: Evaluation, ema: Evaluation | None) -> None:
        """Keep the best of all epochs, be it of the raw weights or of their average; a tie keeps the earlier."""
        metric, progress = self.config.trainer.monitor, self.progress
        name = checkpoint_name(progress.epoch, progress.step)
        candidates: list[tuple[Weights, Evaluation]] = [("raw", raw)]
        if ema is not None:
            candidates.append(("ema", ema))
        for weights, result in candidates:
            value = float(getattr(result, metric.removeprefix("val_")))
            if progress.improves(metric, value):
                progress.best = Best(metric=metric, value=value, epoch=progress.epoch, checkpoint=name, weights=weights)

    # Checkpoints ---------------------------------------------------------------------------------------------

    def _check_stop(self) -> None:
        received = self.stop_vote.cast(signal.Signals[self.stop.received].value if self.stop.received else 0)
        if received:
            self._save()
            raise StoppedOnRequest(
                f"stopped on {signal.Signals(received).name} at epoch {self.progress.epoch + 1}, "
                f"step {self.progress.step}; "
                "everything is saved"
            )

    def _save(self) -> None:
        """Write a checkpoint; never one of weights that a bad loss has spoilt."""
        self._check_finite()
        if not self.dist.is_main:
            return
        progress = self.progress
        name = checkpoint_name(progress.epoch + (1 if progress.batch else 0), progress.step)
        if name == self.checkpoints.pointed("last"):
            return
        self.checkpoints.save(name, self._tensors(), self._state())
        self.checkpoints.point("last", name)
        if progress.best is not None and progress.best.checkpoint == name:
            self.checkpoints.point("best", name)
        self.checkpoints.prune()

    def _tensors(self) -> dict[str, dict[str, torch.Tensor]]:
        tensors = {
            "model": dict(self.model.state_dict()),
            "optimizer": named_state(self.optimizer, self.model),
        }
        if self.ema is not None:
            tensors["ema"] = dict(self.ema.module.state_dict())
        return tensors

    def _state(self) -> dict[str, Any]:
        return {
            "format": CHECKPOINT_FORMAT,
            "progress": self.progress.to_json(),
            "meter": self.meter.to_json(),
            "scaler": self.scaler.state_dict(),
            "ema_num_averaged": int(self.ema.n_averaged) if self.ema is not None else None,
            "classes": list(self.classes),
            "config": self.config.model_dump(mode="json"),
        }
