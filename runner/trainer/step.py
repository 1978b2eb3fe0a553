"""One optimizer step: the loss of the next images, its gradients, the update of the weights."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from itertools import islice

import torch
from torch import nn

from runner.base.keyed_random import key
from runner.config.schema import Config
from runner.config.schema.transforms import height_and_width
from runner.data.loader.batch import BadImage, Batch
from runner.dist.device import seed_generators, to_device
from runner.optimizer import peak_learning_rate, set_learning_rate
from runner.schedule import learning_rate
from runner.trainer.activations import layers_with_statistics, statistics_kept
from runner.trainer.bad_images import padded_batch
from runner.trainer.freezing import learning_names, set_training_mode
from runner.trainer.loss.distillation import Distillation
from runner.trainer.loss.losses import build_loss
from runner.trainer.loss.mixing import build_mixing
from runner.trainer.state import Placement, TrainingState
from runner.trainer.training_images import TrainingImages


class Stepper:
    """Takes the optimizer steps of a training, in one process."""

    def __init__(
        self,
        config: Config,
        state: TrainingState,
        images: TrainingImages,
        placement: Placement,
        teacher: nn.Module | None = None,
    ) -> None:
        self.config = config
        self.state = state
        self.images = images
        self.placement = placement
        self.replica = state.model  # the model, or its DistributedDataParallel wrapper
        self._replicated: frozenset[str] | None = frozenset()  # names of the parameters that the replica was made for
        self._with_statistics = layers_with_statistics(state.model, config.model)
        self._mixing = build_mixing(config.trainer, len(images.classes))
        self._loss = build_loss(config.trainer)
        self._distillation = Distillation(config.distill, teacher) if teacher is not None else None
        self._peak = peak_learning_rate(config.optimizer, placement.dist.world_size)

    def begin_epoch(self) -> None:
        """Prepare for the steps of the epoch in progress; to be called once before them."""
        state, epoch = self.state, self.state.progress.epoch
        learning = learning_names(self.config.trainer, state.model, state.head, epoch)
        set_training_mode(state.model, state.head, learning)
        self._replicate(learning)
        self.images.weighting.begin_epoch(epoch)

    def take(self, stream: Iterator[Batch], rate: float | None = None) -> None:
        """Take one optimizer step on the next trainer.accumulate_steps batches, by default at the schedule's rate.

        Raises:
            InvalidDatasetError: too many images are bad.
        """
        progress, meter, dist = self.state.progress, self.state.meter, self.placement.dist
        following = self.images.train_batches.plan.batches_from(progress.position)
        places = list(islice(following, self.config.trainer.accumulate_steps))
        whole = self.images.weighting.of_positions(places[0].start, places[-1].stop)
        bad: list[BadImage] = []
        self._set_learning_rate(rate)
        for place in places:
            with meter.clock.measure("data_wait"):
                batch = next(stream)
            share = place.share(dist.rank, dist.world_size)
            assert len(batch.asked) == share.stop - share.start, "the loader and the trainer are at the same position"
            meter.count_samples(share.start, batch.asked.numpy(), len(batch.bad))
            bad += batch.bad
            is_last = place is places[-1]
            if is_last:
                num_bad = self._count_bad_everywhere(bad)
            with nullcontext() if is_last else self._without_all_reduce():
                self._backward(batch, place.start, dist.world_size / whole)
        if num_bad() == 0 or self._rescale_gradients(bad, places[-1].stop - places[0].start, whole):
            self._update()
        progress.advance(places[-1].stop)

    def _replicate(self, learning: frozenset[str] | None) -> None:
        """Wrap the model for the all-reduce of its gradients; again when other parameters begin to learn."""
        if self._replicated == learning:
            return
        config = self.config
        # A static graph is not given where some backward passes have no all-reduce, where DDP can't see it (compiled
        # code), and in a user's own model, which may compute something else in each step.
        is_plain = config.trainer.accumulate_steps == 1 and not config.trainer.compile
        is_graph_static = is_plain and config.model.family in ("resnet", "densenet")
        self.replica = self.placement.dist.replicate(self.state.model, is_graph_static=is_graph_static)
        self._replicated = learning

    def _backward(self, batch: Batch, position: int, weight: float) -> None:
        """Add the gradients of a batch.

        Args:
            batch: of this process.
            position: of the batch in the epoch's order, over all processes.
            weight: of each image's loss: world size / sum of the image weights of the whole step, since the all-reduce
                averages over processes.
        """
        state, precision, memory_format = self.state, self.placement.precision, self.placement.memory_format
        dist, device = self.placement.dist, self.placement.dist.device
        dist.heartbeat()
        # Dropout and the like follow from (seed, epoch, position, rank): there is no generator state to save.
        seed_generators(device, key(self.config.seed, "step", state.progress.epoch, position, dist.rank))
        images = to_device(batch.images, device, memory_format)
        labels = to_device(batch.labels, device)
        shape = (self.config.data.channels, *height_and_width(self.config.data.image_size))
        with padded_batch(images, shape, state.model) if batch.bad else nullcontext(images) as left:
            # For an empty batch SyncBatchNorm sends statistics in its input's format, while other processes send fp32.
            with precision.autocast(device.type) if len(left) else nullcontext():
                seen, targets = self.images.normalizer(left), labels
                if self._mixing is not None:
                    mixed, targets = self._mixing(seen, labels)
                    seen = mixed.contiguous(memory_format=memory_format)
                logits = self.replica(seen)
                scores = self._distillation.scores(seen) if self._distillation is not None else None
            logits, per_class = logits.float()[: len(labels)], self.images.weighting.per_class
            loss = self._loss(logits, targets, per_class)
            if self._distillation is not None and scores is not None:
                loss = self._distillation(loss, logits, scores.float()[: len(labels)], targets, per_class)
            with statistics_kept(self._with_statistics):
                state.scaler.scale(loss * weight).backward()  # type: ignore[no-untyped-call]
        state.meter.add(loss.detach(), logits.detach(), labels, state.progress.step + 1)

    def _count_bad_everywhere(self, bad: list[BadImage]) -> Callable[[], int]:
        """Start an all-reduce of the number of skipped images of the step; the returned function waits for the sum."""
        if self.config.data.on_bad_image == "error":
            return lambda: 0
        return self.placement.dist.begin_total(len(bad))

    def _rescale_gradients(self, bad: list[BadImage], num_images: int, whole: float) -> bool:
        """Turn a step's gradients into the mean over the images that were not skipped by any process.

        Args:
            bad: images that this process skipped in this step.
            num_images: images of the step, over all processes, skipped ones included.
            whole: sum of their weights, by which the gradients are divided so far.

        Returns:
            Whether any image was left; without one, the gradients are dropped.

        Raises:
            InvalidDatasetError: too many images are bad.
        """
        everywhere = sorted(BadImage(*item) for item in self.placement.dist.gather(bad))
        self.images.bad_train.add(everywhere)
        if len(everywhere) == num_images:
            self.state.optimizer.zero_grad(set_to_none=True)
            return False
        used = whole - self.images.weighting.of_images(image for image, _ in everywhere)
        gradients = [parameter.grad for parameter in self.state.model.parameters() if parameter.grad is not None]
        torch._foreach_mul_(gradients, whole / used)
        return True

    def _update(self) -> None:
        state, clip_norm = self.state, self.config.trainer.clip_norm
        if clip_norm is not None:
            state.scaler.unscale_(state.optimizer)
            nn.utils.clip_grad_norm_(state.model.parameters(), clip_norm)
        state.scaler.step(state.optimizer)
        state.scaler.update()
        state.optimizer.zero_grad(set_to_none=True)
        if state.ema is not None:
            state.ema.update()

    def _set_learning_rate(self, rate: float | None) -> None:
        progress = self.state.progress
        by_schedule = learning_rate(
            self.config.schedule,
            peak=self._peak,
            epoch=progress.epoch + progress.position / self.images.train_batches.plan.num_samples,
            epochs=self.config.trainer.epochs,
        )
        self.state.learning_rate = by_schedule if rate is None else rate
        set_learning_rate(self.state.optimizer, self.state.learning_rate)

    def _without_all_reduce(self) -> AbstractContextManager[None]:
        no_sync = getattr(self.replica, "no_sync", None)
        return nullcontext() if no_sync is None else no_sync()
