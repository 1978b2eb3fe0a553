"""One optimizer step: the loss of the next images, its gradients, the update of the weights."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from itertools import islice

import torch
from torch import nn
from torch.nn import functional

from runner.base.keyed_random import key
from runner.config.schema import Config
from runner.data.loader.batch import BadImage, Batch
from runner.dist.device import moved, seed_generators
from runner.optimizer import peak_learning_rate
from runner.schedule import learning_rate
from runner.trainer.bad_images import what_is_left
from runner.trainer.mixing import build_mixing
from runner.trainer.state import Placement, TrainingState
from runner.trainer.training_images import TrainingImages


class Stepper:
    """Takes the optimizer steps of a training, in one process: it alone changes weights, and advances the progress."""

    def __init__(self, config: Config, state: TrainingState, images: TrainingImages, placement: Placement) -> None:
        self.config = config
        self.state = state
        self.images = images
        self.placement = placement
        self.replica = state.model  # what computes: the model itself, or what wraps it to exchange gradients
        self._replica_is_frozen: bool | None = None  # whether it was wrapped with a frozen backbone; None: not yet
        self._mixing = build_mixing(config.trainer, len(images.classes))
        self._peak = peak_learning_rate(config.optimizer, placement.dist.world_size)

    def begin_epoch(self) -> None:
        """Prepare for the steps of the epoch in progress."""
        epoch = self.state.progress.epoch
        is_frozen = epoch < self.config.trainer.freeze_backbone_epochs
        set_training_mode(self.state.model, self.state.head if is_frozen else None)
        self._replicate(is_frozen)
        self.images.weighting.begin(epoch)

    def take(self, stream: Iterator[Batch]) -> None:
        """Take one step on the stream's next batches.

        Raises:
            InvalidDatasetError: too many images are bad.
        """
        progress, meter, dist = self.state.progress, self.state.meter, self.placement.dist
        following = self.images.train_batches.plan.batches_from(progress.position)
        places = list(islice(following, self.config.trainer.accumulate_steps))
        whole = self.images.weighting.of_positions(places[0].start, places[-1].stop)
        bad: list[BadImage] = []
        self._set_learning_rate()
        for place in places:
            with meter.clock.runs_for("data_wait"):
                batch = next(stream)
            share = place.share(dist.rank, dist.world_size)
            assert len(batch.asked) == share.stop - share.start, "the loader and the trainer are at the same position"
            meter.count_samples(share.start, batch.asked.numpy(), len(batch.bad))
            bad += batch.bad
            is_last = place is places[-1]
            if is_last:
                num_bad = self._begin_counting(bad)
            with self._exchange_gradients(when=is_last):
                self._backward(batch, place.start, dist.world_size / whole)
        if num_bad() == 0 or self._make_up_for(bad, places[-1].stop - places[0].start, whole):
            self._update()
        progress.advance(places[-1].stop)

    def _replicate(self, is_frozen: bool) -> None:
        """Exchange the gradients of what learns now; what is wrapped stays so until more begins to learn."""
        if self._replica_is_frozen is is_frozen:
            return
        config = self.config
        # A backward pass without an exchange is another graph, compiled code hides it, and of a user's model we can't
        # know whether each step computes the same.
        is_plain = config.trainer.accumulate_steps == 1 and not config.trainer.compile
        is_graph_static = is_plain and config.model.family in ("resnet", "densenet")
        self.replica = self.placement.dist.replicate(self.state.model, is_graph_static=is_graph_static)
        self._replica_is_frozen = is_frozen

    def _backward(self, batch: Batch, position: int, weight: float) -> None:
        """Add a batch's gradients; `weight` turns sums over images into the mean over all of a step's images.

        The processes' gradients are averaged, so the weight is world size / images of the step on all of them (or the
        sum of their weights).
        """
        state, precision, memory_format = self.state, self.placement.precision, self.placement.memory_format
        dist, device = self.placement.dist, self.placement.dist.device
        dist.heartbeat()
        # Dropout and the like draw from (seed, epoch, position, rank), so that there is no generator state to save.
        seed_generators(device, key(self.config.seed, "step", state.progress.epoch, position, dist.rank))
        images = moved(batch.images, device, memory_format)
        labels = moved(batch.labels, device)
        side = self.config.data.image_size
        with what_is_left(images, side, state.model) if batch.bad else nullcontext(images) as left:
            # Of no images, SyncBatchNorm sends statistics in its input's format, but the others send theirs in fp32.
            with precision.autocast(device.type) if len(left) else nullcontext():
                seen, targets = self.images.normalizer(left), labels
                if self._mixing is not None:
                    mixed, targets = self._mixing(seen, labels)
                    seen = mixed.contiguous(memory_format=memory_format)
                logits = self.replica(seen)
            logits = logits.float()[: len(labels)]
            loss = functional.cross_entropy(
                logits,
                targets,
                weight=self.images.weighting.per_class,
                reduction="sum",
                label_smoothing=self.config.trainer.label_smoothing,
            )
            state.scaler.scale(loss * weight).backward()  # type: ignore[no-untyped-call]
        state.meter.add(loss.detach(), logits.detach(), labels, state.progress.step + 1)

    def _begin_counting(self, bad: list[BadImage]) -> Callable[[], int]:
        """Ask all processes how many images of the step they have skipped; answered while the step is computed."""
        if self.config.data.on_bad_image == "error":
            return lambda: 0
        return self.placement.dist.begin_total(len(bad))

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
        everywhere = sorted(BadImage(*item) for item in self.placement.dist.gather(bad))
        self.images.bad_train.record(everywhere)
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

    def _set_learning_rate(self) -> None:
        progress = self.state.progress
        self.state.learning_rate = learning_rate(
            self.config.schedule,
            peak=self._peak,
            epoch=progress.epoch + progress.position / self.images.train_batches.plan.num_samples,
            epochs=self.config.trainer.epochs,
        )
        for group in self.state.optimizer.param_groups:
            group["lr"] = self.state.learning_rate

    def _exchange_gradients(self, *, when: bool) -> AbstractContextManager[None]:
        no_sync = getattr(self.replica, "no_sync", None)
        return nullcontext() if when or no_sync is None else no_sync()


def set_training_mode(module: nn.Module, head: nn.Module | None) -> None:
    """Put a model into training mode, as a whole or with a frozen backbone.

    A frozen backbone computes no gradients and its BatchNorm statistics stand still.

    Args:
        module: the whole model.
        head: its classification head where everything else is frozen; None trains all.
    """
    learning = {id(parameter) for parameter in (head or module).parameters()}
    for parameter in module.parameters():
        parameter.requires_grad_(id(parameter) in learning)
    module.train(head is None)
    if head is not None:
        head.train()
