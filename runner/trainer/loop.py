"""The loop over epochs and steps."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, nullcontext
from itertools import islice

import torch
from torch import nn
from torch.nn import functional

from runner.base.console import LOGGER
from runner.base.errors import NonFiniteLossError, StoppedOnRequest
from runner.base.keyed_random import key
from runner.base.stop import StopRequest
from runner.config.schema import Config
from runner.data.loader.batch import BadImage, Batch
from runner.data.loader.loader import EvalBatches, TrainBatches
from runner.dist.collectives import DistContext, Vote
from runner.dist.device import Precision, moved, seed_generators
from runner.optimizer import peak_learning_rate
from runner.run.checkpoint import checkpoint_name
from runner.run.checkpoint_writer import CheckpointWriter
from runner.schedule import learning_rate
from runner.trainer.average import MovingAverage
from runner.trainer.backbone import set_training_mode
from runner.trainer.bad_images import BadImages, what_is_left
from runner.trainer.epoch_end import finish_epoch
from runner.trainer.meter import Meter, Totals
from runner.trainer.mixing import build_mixing
from runner.trainer.on_cpu import step_without_copies, weight_gradients_by_product
from runner.trainer.progress import Progress
from runner.trainer.recorder import Recorder, StepReport
from runner.trainer.requests import Request
from runner.trainer.state import refuse_spoilt_weights, state_of, tensors_of
from runner.trainer.weighting import Weighting


class Trainer:
    """Trains one model; assembled by `runner.training.assemble`, which decides what each part is."""

    pruner: Callable[[int], str | None] | None = None
    """Says after so many epochs why the training ends early, or None; set where it is a trial."""
    pruned: str | None = None
    """Why the pruner has ended the training early."""
    learning_rate = 0.0
    """Of the step in progress."""
    first_bad_step: int | None = None
    """At which this process saw an infinite loss, as of its newest report."""

    def __init__(
        self,
        *,
        config: Config,
        dist: DistContext,
        precision: Precision,
        classes: tuple[str, ...],
        model: nn.Module,
        head: nn.Module | None,
        ema: MovingAverage | None,
        normalizer: nn.Module,
        memory_format: torch.memory_format,
        optimizer: torch.optim.Optimizer,
        train_batches: TrainBatches,
        val_batches: EvalBatches,
        weighting: Weighting,
        bad_images: tuple[BadImages, BadImages],
        data_fingerprint: str,
        writer: CheckpointWriter,
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
        self.weighting = weighting
        self.mixing = build_mixing(config.trainer, len(classes))
        self.bad_train, self.bad_val = bad_images
        self.data_fingerprint = data_fingerprint
        self.writer = writer
        self.stop = stop
        self.requests = Vote(dist)
        self.recorder = recorder
        self.progress = Progress()
        self.meter = Meter(dist.device)
        self.peak = peak_learning_rate(config.optimizer, dist.world_size)
        self.saved_at = time.monotonic()
        self.saved_name: str | None = None  # the newest checkpoint, of exactly the present state

    @property
    def steps_per_epoch(self) -> int:
        """Optimizer steps of a whole epoch."""
        return -(-self.train_batches.plan.batches_per_epoch // self.config.trainer.accumulate_steps)

    def fit(self) -> None:
        """Train until the last epoch, the last step, or until patience ends; from wherever `progress` stands.

        The last checkpoint may still be in the hands of the writer then.

        Raises:
            StoppedOnRequest: after everything was saved.
            NonFiniteLossError: the last good checkpoint stands.
        """
        progress = self.progress
        self.meter.clock.start()
        batches = self.train_batches.stream(progress.epoch, progress.position, self.config.trainer.epochs)
        with closing(batches) as stream, closing(self.val_batches):
            while not self._is_finished() and not self._is_pruned():
                self._train_epoch(stream)
                finish_epoch(self)

    def _is_finished(self) -> bool:
        trainer, progress = self.config.trainer, self.progress
        if trainer.patience is not None and progress.epochs_without_improvement >= trainer.patience:
            LOGGER.info(
                "stopped early: %d epochs without a better validation loss than %.4f (trainer.patience)",
                progress.epochs_without_improvement,
                progress.lowest_val_loss,
            )
            return True
        # With all steps done, an epoch that was cut short is still evaluated.
        return progress.epoch >= trainer.epochs or (self._has_all_steps() and progress.position == 0)

    def _is_pruned(self) -> bool:
        """Ask the pruner between two epochs: the first process does, and all end together."""
        if self.pruner is not None and self.progress.epoch > 0 and self.progress.position == 0:
            decision = self.pruner(self.progress.epoch) if self.dist.is_main else None
            self.pruned = self.dist.share_object(decision)
        return self.pruned is not None

    def _has_all_steps(self) -> bool:
        max_steps = self.config.trainer.max_steps
        return max_steps is not None and self.progress.step >= max_steps

    # Training ------------------------------------------------------------------------------------------------

    def _train_epoch(self, stream: Iterator[Batch]) -> None:
        progress, trainer, plan = self.progress, self.config.trainer, self.train_batches.plan
        is_frozen = progress.epoch < trainer.freeze_backbone_epochs
        set_training_mode(self.model, self.head if is_frozen else None)
        self._replicate(is_frozen)
        self.weighting.begin(progress.epoch)
        reported, reported_at = self.meter.read(), time.perf_counter()
        while not plan.is_over(progress.position) and not self._has_all_steps():
            self.heed_requests(may_save=True)
            with self.meter.clock.runs_for("train"):
                self._optimizer_step(stream)
            if progress.step % trainer.print_every == 0:
                with self.meter.clock.runs_for("train"):  # the device may be steps behind
                    # The others hear of it with the next requests: asking them here would be a wait for all.
                    self.first_bad_step = self.meter.first_bad_step()
                    totals, now = self.meter.read(), time.perf_counter()
                if self.first_bad_step is None:
                    self._report(totals - reported, now - reported_at)
                reported, reported_at = totals, now
            if trainer.checkpoint_every and progress.step % trainer.checkpoint_every == 0:
                self.save()

    def _optimizer_step(self, stream: Iterator[Batch]) -> None:
        progress = self.progress
        following = self.train_batches.plan.batches_from(progress.position)
        places = list(islice(following, self.config.trainer.accumulate_steps))
        whole = self.weighting.of_positions(places[0].start, places[-1].stop)
        bad: list[BadImage] = []
        self._set_learning_rate()
        for place in places:
            with self.meter.clock.runs_for("data_wait"):
                batch = next(stream)
            share = place.share(self.dist.rank, self.dist.world_size)
            assert len(batch.asked) == share.stop - share.start, "the loader and the trainer are at the same position"
            self.meter.count_samples(share.start, batch.asked.numpy(), len(batch.bad))
            bad += batch.bad
            is_last = place is places[-1]
            if is_last:
                num_bad = self._begin_counting(bad)
            with self._exchange_gradients(when=is_last):
                self._backward(batch, place.start, self.dist.world_size / whole)
        if num_bad() == 0 or self._make_up_for(bad, places[-1].stop - places[0].start, whole):
            self._update()
        progress.position = places[-1].stop
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

    def _backward(self, batch: Batch, position: int, weight: float) -> None:
        """Add a batch's gradients; `weight` turns sums over images into the mean over all of a step's images.

        The processes' gradients are averaged, so the weight is world size / images of the step on all of them (or the
        sum of their weights).
        """
        self.dist.beat()
        device = self.dist.device
        # Dropout and the like draw from (seed, epoch, position, rank), so that there is no generator state to save.
        seed_generators(device, key(self.config.seed, "step", self.progress.epoch, position, self.dist.rank))
        images = moved(batch.images, device, self.memory_format)
        labels = moved(batch.labels, device)
        side = self.config.data.image_size
        with what_is_left(images, side, self.model) if batch.bad else nullcontext(images) as left:
            # Of no images, SyncBatchNorm sends statistics in its input's format, but the others send theirs in fp32.
            with self.precision.autocast(device.type) if len(left) else nullcontext():
                seen, targets = self.normalizer(left), labels
                if self.mixing is not None:
                    mixed, targets = self.mixing(seen, labels)
                    seen = mixed.contiguous(memory_format=self.memory_format)
                with self._quick_gradients():
                    logits = self.replica(seen)
            logits = logits.float()[: len(labels)]
            loss = functional.cross_entropy(
                logits,
                targets,
                weight=self.weighting.per_class,
                reduction="sum",
                label_smoothing=self.config.trainer.label_smoothing,
            )
            self.scaler.scale(loss * weight).backward()  # type: ignore[no-untyped-call]
        self.meter.add(loss.detach(), logits.detach(), labels, self.progress.step + 1)

    def _quick_gradients(self) -> AbstractContextManager[object]:
        # A compiler chooses by itself.
        is_compiled = self.config.trainer.compile
        return nullcontext() if is_compiled else weight_gradients_by_product(self.dist.device, self.precision)

    def _begin_counting(self, bad: list[BadImage]) -> Callable[[], int]:
        """Ask all processes how many images of the step they have skipped; answered while the step is computed."""
        if self.config.data.on_bad_image == "error":
            return lambda: 0
        return self.dist.begin_total(len(bad))

    def _make_up_for(self, bad: list[BadImage], num_images: int, whole: float) -> bool:
        """Turn a step's gradients into the mean over the images that were really used, where some process skipped any.

        Args:
            bad: what this process has skipped in this step.
            num_images: images of the step, over all processes, before any was skipped.
            whole: sum of their weights, by which the gradients have been divided.

        Returns:
            Whether any image was used.

        Raises:
            InvalidDatasetError: too many images are bad.
        """
        everywhere = sorted(BadImage(*item) for item in self.dist.gather(bad))
        self.bad_train.meet(everywhere)
        if len(everywhere) == num_images:
            self.optimizer.zero_grad(set_to_none=True)
            return False
        used = whole - self.weighting.of_images(image for image, _ in everywhere)
        gradients = [parameter.grad for parameter in self.model.parameters() if parameter.grad is not None]
        torch._foreach_mul_(gradients, whole / used)
        return True

    def _update(self) -> None:
        clip_norm = self.config.trainer.clip_norm
        if clip_norm is not None:
            self.scaler.unscale_(self.optimizer)
            nn.utils.clip_grad_norm_(self.model.parameters(), clip_norm)
        with step_without_copies(self.dist.device):
            self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad(set_to_none=True)
        if self.ema is not None:
            self.ema.update()

    def _set_learning_rate(self) -> None:
        self.learning_rate = learning_rate(
            self.config.schedule,
            peak=self.peak,
            epoch=self.progress.epoch + self.progress.position / self.train_batches.plan.num_samples,
            epochs=self.config.trainer.epochs,
        )
        for group in self.optimizer.param_groups:
            group["lr"] = self.learning_rate

    def _exchange_gradients(self, *, when: bool) -> AbstractContextManager[None]:
        no_sync = getattr(self.replica, "no_sync", None)
        return nullcontext() if when or no_sync is None else no_sync()

    def _report(self, interval: Totals, seconds: float) -> None:
        if self.recorder is None:
            return
        step_size = self.train_batches.plan.full_size * self.config.trainer.accumulate_steps
        self.recorder.step(
            StepReport(
                epoch=self.progress.epoch + 1,
                step=self.progress.step,
                step_in_epoch=min(-(-self.progress.position // step_size), self.steps_per_epoch),
                steps_per_epoch=self.steps_per_epoch,
                learning_rate=self.learning_rate,
                loss=interval.mean_loss,
                top1=interval.top1,
                images_per_second=interval.count * self.dist.world_size / seconds,
            )
        )

    def check_finite(self) -> None:
        """Refuse to go on with a loss that is infinite or not a number; waits for the device, and for all processes.

        Raises:
            NonFiniteLossError: naming the first step at which it happened, and what to try.
        """
        step = self.dist.smallest(self.meter.first_bad_step())
        if step is not None:
            raise self._bad_loss(step)

    def _bad_loss(self, step: int) -> NonFiniteLossError:
        return NonFiniteLossError(
            f"the training loss became infinite or not a number at epoch {self.progress.epoch + 1}, step {step}, "
            f"learning rate {self.learning_rate:.3g}; try a lower optimizer.lr, schedule.warmup_epochs=1, "
            "trainer.clip_norm=1, or trainer.precision=fp32"
        )

    # Checkpoints ---------------------------------------------------------------------------------------------

    def heed_requests(self, *, may_save: bool) -> None:
        """End over a bad loss, stop, or save after trainer.checkpoint_minutes, if any process asks for it.

        All hear of it at once.
        """
        minutes = self.config.trainer.checkpoint_minutes
        is_due = minutes is not None and time.monotonic() - self.saved_at >= minutes * 60
        signal_number = signal.Signals[self.stop.received].value if self.stop.received else 0
        own = Request(self.first_bad_step, signal_number, saves=is_due and self.dist.is_main)
        heard = Request.from_number(self.requests.cast(own.to_number()))
        if heard.first_bad_step is not None:
            raise self._bad_loss(heard.first_bad_step)
        if heard.signal_number:
            self.save()
            self.writer.wait()
            raise StoppedOnRequest(
                f"stopped on {signal.Signals(heard.signal_number).name} at epoch {self.progress.epoch + 1}, "
                f"step {self.progress.step}; everything is saved"
            )
        if heard.saves and may_save:
            self.save()

    def save(self) -> None:
        """Save a checkpoint; never one of weights that a bad loss has spoilt. Every process must call it."""
        with self.meter.clock.runs_for("train"):  # the device may be steps behind
            self.check_finite()
        with self.meter.clock.runs_for("checkpoint"):
            self._submit()

    def _submit(self) -> None:
        progress = self.progress
        name = checkpoint_name(progress.epoch, progress.step)
        state = state_of(self)
        self.saved_at = time.monotonic()
        if not self.dist.is_main or name == self.saved_name:
            return
        refuse_spoilt_weights(self)
        is_best = progress.best is not None and progress.best.checkpoint == name
        self.writer.submit(name, tensors_of(self), state, is_best=is_best)
        self.saved_name = name
