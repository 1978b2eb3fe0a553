"""The loop over epochs: optimizer steps, reports, evaluation, checkpoints."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from typing import NamedTuple

from torch import nn

from runner.base.console import LOGGER
from runner.base.errors import InvalidDatasetError, StoppedOnRequest
from runner.config.schema import Config
from runner.data.loader.batch import Batch
from runner.dist.collectives import Vote
from runner.run.checkpoint import Checkpoint, checkpoint_name
from runner.run.checkpoint_writer import CheckpointWriter
from runner.trainer.epoch_end import EpochResult, evaluate_epoch, evaluate_module
from runner.trainer.meter import Totals
from runner.trainer.metrics_log import Recorder, StepReport
from runner.trainer.state import CHECKPOINT_FORMAT, Placement, TrainingState
from runner.trainer.step import Stepper
from runner.trainer.training_images import TrainingImages

_NUM_SIGNALS = 128
_LAST_STEP = 2**40  # more steps than a run has


class Flags(NamedTuple):
    """What a process requests of all processes between two steps: to raise over a bad loss, to stop, to save.

    Each process encodes its flags as a number, the numbers are all-reduced to their maximum, and all processes follow
    the result. So the most urgent flag wins: a bad loss, the earliest first; then a signal; then a save.
    """

    first_bad_step: int | None
    """The step, from 1, at which this process saw an infinite loss; None where all were finite."""
    signal_number: int
    """Of the signal that asked to stop; 0 for none."""
    saves: bool
    """Whether a checkpoint is due."""

    def to_number(self) -> int:
        """At least 0; more urgent flags give larger numbers."""
        urgency = 0 if self.first_bad_step is None else _LAST_STEP - self.first_bad_step
        return (urgency * _NUM_SIGNALS + self.signal_number) * 2 + self.saves

    @classmethod
    def from_number(cls, number: int) -> Flags:
        """The flags that gave this number."""
        rest, saves = divmod(number, 2)
        urgency, signal_number = divmod(rest, _NUM_SIGNALS)
        return cls(_LAST_STEP - urgency if urgency else None, signal_number, bool(saves))


class Trainer:
    """Trains one model, in one process; its parts are built by `runner.training.assemble`."""

    def __init__(
        self,
        config: Config,
        state: TrainingState,
        images: TrainingImages,
        placement: Placement,
        *,
        writer: CheckpointWriter,
        teacher: nn.Module | None = None,
        recorder: Recorder | None = None,
        pruner: Callable[[int], str | None] | None = None,
    ) -> None:
        """Put the parts together.

        Args:
            config: complete and checked.
            state: what the training changes as it advances.
            images: the training and the validation split.
            placement: process group, device and number formats.
            writer: writes the checkpoints.
            teacher: the model in distill.run, on the device.
            recorder: writes the metrics; only the main process has one.
            pruner: called with the number of finished epochs; returns why the training ends early, or None to continue.
        """
        self.config = config
        self.state = state
        self.images = images
        self.placement = placement
        self.writer = writer
        self.recorder = recorder
        self.stepper = Stepper(config, state, images, placement, teacher)
        self.pruned: str | None = None  # why the pruner ended the training early
        self._pruner = pruner
        self._teacher = teacher
        self._vote = Vote(placement.dist)
        self._first_bad_step: int | None = None  # with an infinite loss in this process, as of its newest report
        self._saved_at = time.monotonic()
        self._saved_name: str | None = None  # checkpoint of exactly the current state

    @property
    def steps_per_epoch(self) -> int:
        """Optimizer steps of a whole epoch."""
        return -(-self.images.train_batches.plan.batches_per_epoch // self.config.trainer.accumulate_steps)

    def restore(self, checkpoint: Checkpoint) -> None:
        """Restore the state from a checkpoint of this run; to be called before :meth:`fit`.

        Raises:
            CheckpointError: when the checkpoint is of another model or of other data.
        """
        self.state.restore(checkpoint)
        counted = self.state.meter.read() if self.placement.dist.is_main else None
        self.images.restore(checkpoint, self.state.progress, counted)
        self._saved_name = checkpoint.name

    def fit(self) -> None:
        """Train from the state's progress on, until epochs, max_steps, patience or the pruner end the training.

        The writer may still be writing the last checkpoint when this returns.

        Raises:
            StoppedOnRequest: after a signal; a checkpoint was saved before.
            NonFiniteLossError: a loss or a weight is not finite; the last checkpoint has finite ones.
            InvalidDatasetError: too many images, or all images of an epoch, can't be read.
        """
        progress = self.state.progress
        if self._teacher is not None and progress.step == 0:
            self._evaluate_teacher(self._teacher)
        self.state.meter.clock.start()
        batches = self.images.train_batches.stream(progress.epoch, progress.position, self.config.trainer.epochs)
        with closing(batches) as stream, closing(self.images.val_batches):
            while not self._is_finished() and not self._is_pruned():
                self._train_epoch(stream)
                self._end_epoch()

    def _evaluate_teacher(self, teacher: nn.Module) -> None:
        """Log how good the teacher is on the validation images, as the student sees them."""
        poll = partial(self._poll_signals, may_save=False)
        result = evaluate_module(teacher, self.images, self.placement, self.writer, poll)
        LOGGER.info("teacher     val top-1 %.2f%%, loss %.4f", 100 * result.top1, result.loss)

    def _is_finished(self) -> bool:
        trainer, progress = self.config.trainer, self.state.progress
        if trainer.patience is not None and progress.epochs_without_improvement >= trainer.patience:
            LOGGER.info(
                "stopped early: %d epochs without a better validation loss than %.4f (trainer.patience)",
                progress.epochs_without_improvement,
                progress.lowest_val_loss,
            )
            return True
        # An epoch that trainer.max_steps cut short is still evaluated first.
        return progress.epoch >= trainer.epochs or (self._has_all_steps() and progress.position == 0)

    def _is_pruned(self) -> bool:
        """Ask the pruner between two epochs: the main process asks, and all processes end together."""
        progress, dist = self.state.progress, self.placement.dist
        if self._pruner is not None and progress.epoch > 0 and progress.position == 0:
            decision = self._pruner(progress.epoch) if dist.is_main else None
            self.pruned = dist.broadcast_object(decision)
        return self.pruned is not None

    def _has_all_steps(self) -> bool:
        max_steps = self.config.trainer.max_steps
        return max_steps is not None and self.state.progress.step >= max_steps

    # Training ------------------------------------------------------------------------------------------------

    def _train_epoch(self, stream: Iterator[Batch]) -> None:
        state, trainer = self.state, self.config.trainer
        progress, meter = state.progress, state.meter
        self.stepper.begin_epoch()
        reported, reported_at = meter.read(), time.perf_counter()
        while not self.images.is_epoch_over(progress) and not self._has_all_steps():
            self._poll_signals(may_save=True)
            with meter.clock.measure("train"):
                self.stepper.take(stream)
            if progress.step % trainer.print_every == 0:
                with meter.clock.measure("train"):  # the device may be steps behind
                    # Shared with the other processes by the next poll; an exchange here would make all of them wait.
                    self._first_bad_step = meter.first_bad_step()
                    totals, now = meter.read(), time.perf_counter()
                if self._first_bad_step is None:
                    self._report(totals - reported, now - reported_at)
                reported, reported_at = totals, now
            if trainer.checkpoint_every and progress.step % trainer.checkpoint_every == 0:
                self.save()

    def _report(self, interval: Totals, seconds: float) -> None:
        if self.recorder is None:
            return
        progress = self.state.progress
        step_size = self.images.train_batches.plan.full_size * self.config.trainer.accumulate_steps
        self.recorder.step(
            StepReport(
                epoch=progress.epoch + 1,
                step=progress.step,
                step_in_epoch=min(-(-progress.position // step_size), self.steps_per_epoch),
                steps_per_epoch=self.steps_per_epoch,
                learning_rate=self.state.learning_rate,
                loss=interval.mean_loss,
                top1=interval.top1,
                images_per_second=interval.count * self.placement.dist.world_size / seconds,
            )
        )

    # The end of an epoch -------------------------------------------------------------------------------------

    def _end_epoch(self) -> None:
        """Evaluate, record and save the epoch in progress, be it whole or cut short by trainer.max_steps."""
        clock, is_whole = self.state.meter.clock, self.images.is_epoch_over(self.state.progress)
        with clock.measure("train"):  # waits for the device
            train = self._checked_totals()
        if not is_whole:
            # A run that is resumed with more steps continues from this checkpoint, in the middle of the epoch, and
            # drops this evaluation and its row.
            self.save()
        with clock.measure("evaluation"):
            result = evaluate_epoch(
                self.state,
                self.images,
                self.placement,
                train,
                writer=self.writer,
                before_batch=lambda: self._poll_signals(may_save=False),
            )
        self._apply(result)
        if self.recorder is not None:
            self.recorder.epoch(result.row(clock.to_json()), self.state.progress.best)
            self.recorder.warn(self.images.bad_image_summaries())
        if is_whole:
            self.save()
        elif self._is_best(result.checkpoint) and self.placement.dist.is_main:
            self.writer.point_best(result.checkpoint)

    def _checked_totals(self) -> Totals:
        """The sums over the epoch's steps and all processes; waits for the device."""
        self.state.check_loss()
        train = self.state.meter.read_all(self.placement.dist)
        if self.placement.dist.is_main:
            self.images.check_totals(train, self.state.progress)
        if train.count == 0:
            raise InvalidDatasetError(f"none of the {train.skipped} training images of this epoch can be read")
        return train

    def _apply(self, result: EpochResult) -> None:
        """Update the state with the result of an epoch, and begin the next one."""
        for evaluation in filter(None, (result.raw, result.ema)):
            self.images.bad_val.reset()
            self.images.bad_val.add(evaluation.bad)
        self.images.bad_train.reset()
        self.state.end_epoch(result.candidates(self.config.trainer.monitor), result.val_loss)

    def _is_best(self, name: str) -> bool:
        best = self.state.progress.best
        return best is not None and best.checkpoint == name

    # Signals and checkpoints ---------------------------------------------------------------------------------

    def _poll_signals(self, *, may_save: bool) -> None:
        """If any process requests it, raise over a bad loss, stop on a signal, or save by trainer.checkpoint_minutes.

        Every process must call it, and all of them act in the same call.
        """
        minutes, received = self.config.trainer.checkpoint_minutes, self.placement.stop.received
        is_due = minutes is not None and time.monotonic() - self._saved_at >= minutes * 60
        signal_number = signal.Signals[received].value if received else 0
        own = Flags(self._first_bad_step, signal_number, saves=is_due and self.placement.dist.is_main)
        flags = Flags.from_number(self._vote.cast(own.to_number()))
        if flags.first_bad_step is not None:
            raise self.state.bad_loss(flags.first_bad_step)
        if flags.signal_number:
            self.save()
            self.writer.wait()
            raise StoppedOnRequest(
                f"stopped on {signal.Signals(flags.signal_number).name} at epoch {self.state.progress.epoch + 1}, "
                f"step {self.state.progress.step}; everything is saved"
            )
        if flags.saves and may_save:
            self.save()

    def save(self) -> None:
        """Save a checkpoint, after a check that loss and weights are finite. Every process must call it."""
        state, clock = self.state, self.state.meter.clock
        with clock.measure("train"):  # waits for the device
            state.check_loss()
        with clock.measure("checkpoint"):
            name = checkpoint_name(state.progress.epoch, state.progress.step)
            values = {
                "format": CHECKPOINT_FORMAT,
                **state.capture(),
                **self.images.capture(state.progress),
                "numerics": self.placement.numerics(is_compiled=self.config.trainer.compile),
                "config": self.config.to_save(),
            }
            self._saved_at = time.monotonic()
            if self.placement.dist.is_main and name != self._saved_name:
                state.check_weights()
                self.writer.submit(name, state.tensors(), values, is_best=self._is_best(name))
                self._saved_name = name
