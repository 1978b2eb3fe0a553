"""The state of a training, which a checkpoint saves and a resumed run restores."""

from __future__ import annotations

from collections.abc import Iterable
from copy import deepcopy
from dataclasses import dataclass
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn

from runner.base.errors import CheckpointError, NonFiniteLossError
from runner.base.stop import StopRequest
from runner.dist.collectives import DistContext
from runner.dist.device import Precision
from runner.model import with_versions
from runner.optimizer import load_named_state, named_state
from runner.run.checkpoint import Checkpoint
from runner.trainer.meter import Meter
from runner.trainer.progress import Best, Progress

CHECKPOINT_FORMAT = 1


@dataclass(frozen=True, kw_only=True)
class Placement:
    """Device, process group and number formats of a training, in one process."""

    dist: DistContext
    """The group of processes, and the device of this one."""
    precision: Precision
    memory_format: torch.memory_format
    """Layout of images and of convolution weights."""
    stop: StopRequest
    """Tells whether a signal has asked this process to stop."""

    def numerics(self, *, is_compiled: bool) -> dict[str, Any]:
        """What decides about the last bits of a result; a resumed run uses the same where it can."""
        return {
            "device": self.dist.device.type,
            "precision": self.precision.name,
            "memory_format": str(self.memory_format),
            "compile": is_compiled,
            "num_threads": torch.get_num_threads(),
            "world_size": self.dist.world_size,
            "torch": str(torch.__version__),
        }


class TrainingState:
    """All that a training changes as it advances: weights, optimizer, scaler, moving average, progress and meter.

    It saves and restores itself. No random generator is part of it: whatever is random is a function of seed, epoch and
    position.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        placement: Placement,
        *,
        head: nn.Module | None = None,
        ema: MovingAverage | None = None,
    ) -> None:
        """Set up the state at the start of a training.

        Args:
            model: on the device, in its memory format.
            optimizer: of the model's parameters.
            placement: device, process group and number formats.
            head: the model's classification head, where trainer.freeze_backbone_epochs freezes the rest; else None.
            ema: moving average of the model's weights; None without one.
        """
        self.model = model
        self.head = head
        self.optimizer = optimizer
        self.scaler = torch.amp.GradScaler(placement.dist.device.type, enabled=placement.precision.name == "fp16")
        self.ema = ema
        self.progress = Progress()
        self.meter = Meter(placement.dist.device)
        self.learning_rate = 0.0
        """Of the newest optimizer step."""
        self._dist = placement.dist

    def end_epoch(self, candidates: Iterable[Best], val_loss: float) -> None:
        """Finish the epoch in progress; see :meth:`runner.trainer.progress.Progress.end_epoch`."""
        self.progress.end_epoch(candidates, val_loss)
        self.meter = Meter(self._dist.device)

    # Checkpoints ---------------------------------------------------------------------------------------------

    def tensors(self) -> dict[str, dict[str, torch.Tensor]]:
        """All tensors by file of the checkpoint, not copied."""
        tensors = {"model": dict(self.model.state_dict()), "optimizer": named_state(self.optimizer, self.model)}
        if self.ema is not None:
            tensors["ema"] = dict(self.ema.module.state_dict())
        return tensors

    def capture(self) -> dict[str, Any]:
        """All but the tensors, for state.json; every process must call it."""
        return {
            "progress": self.progress.to_json(),
            "meter": self.meter.to_json(self._dist),
            "learning_rate": self.learning_rate,
            "scaler": self.scaler.state_dict(),
            "ema_num_averaged": self.ema.num_updates if self.ema is not None else None,
        }

    def restore(self, checkpoint: Checkpoint) -> None:
        """Restore the state from a checkpoint of the same run.

        Raises:
            CheckpointError: when the checkpoint is of another model or damaged.
        """
        self._restore_model(checkpoint)
        self._restore_optimizer(checkpoint)
        self._restore_ema(checkpoint)
        self._restore_scaler(checkpoint)
        self._restore_progress(checkpoint)
        self._restore_meter(checkpoint)

    def _restore_model(self, checkpoint: Checkpoint) -> None:
        _load(self.model, checkpoint, "model")

    def _restore_optimizer(self, checkpoint: Checkpoint) -> None:
        load_named_state(self.optimizer, self.model, _tensors(checkpoint, "optimizer"))

    def _restore_ema(self, checkpoint: Checkpoint) -> None:
        if self.ema is not None:
            _load(self.ema.module, checkpoint, "ema")
            self.ema.num_updates = checkpoint.state["ema_num_averaged"]

    def _restore_scaler(self, checkpoint: Checkpoint) -> None:
        # Empty where the run was not trained in fp16 so far: the scaler then searches its scale anew.
        if checkpoint.state["scaler"]:
            try:
                self.scaler.load_state_dict(checkpoint.state["scaler"])
            except (KeyError, RuntimeError) as error:
                raise CheckpointError(
                    f"checkpoint {checkpoint.name}: the scaler's state is damaged: {error}"
                ) from error

    def _restore_progress(self, checkpoint: Checkpoint) -> None:
        self.progress = Progress.from_json(checkpoint.state["progress"])
        self.learning_rate = checkpoint.state["learning_rate"]

    def _restore_meter(self, checkpoint: Checkpoint) -> None:
        self.meter.restore(checkpoint.state["meter"], is_main=self._dist.is_main)

    # Finite numbers ------------------------------------------------------------------------------------------

    def check_loss(self) -> None:
        """Check that all losses of the epoch were finite; waits for the device. Every process must call it.

        Raises:
            NonFiniteLossError: a loss was not; the message names its step.
        """
        step = self._dist.smallest(self.meter.first_bad_step())
        if step is not None:
            raise self.bad_loss(step)

    def bad_loss(self, step: int) -> NonFiniteLossError:
        """The error of a step, from 1, whose loss was infinite or not a number."""
        return NonFiniteLossError(
            f"the training loss became infinite or not a number at {self.place(step)}; try a lower optimizer.lr, "
            "schedule.warmup_epochs=1, trainer.clip_norm=1, or trainer.precision=fp32"
        )

    def check_weights(self) -> None:
        """Check that the weights are finite, which no loss tells of the newest optimizer step.

        Raises:
            NonFiniteLossError: some are not.
        """
        largest = torch._foreach_norm([*self.model.parameters()], float("inf"))
        if not bool(torch.stack(largest).isfinite().all()):
            raise NonFiniteLossError(
                f"the weights became infinite or not a number at {self.place()}; try a lower optimizer.lr, "
                "trainer.clip_norm=1 or trainer.precision=fp32"
            )

    def place(self, step: int | None = None) -> str:
        """Epoch, step (by default the newest one) and learning rate, for messages."""
        step = self.progress.step if step is None else step
        return f"epoch {self.progress.epoch + 1}, step {step}, learning rate {self.learning_rate:.3g}"


def _load(module: nn.Module, checkpoint: Checkpoint, stem: str) -> None:
    try:
        module.load_state_dict(with_versions(_tensors(checkpoint, stem), module))
    except RuntimeError as error:
        raise CheckpointError(f"checkpoint {checkpoint.name} fits another model than this one: {error}") from error


def _tensors(checkpoint: Checkpoint, stem: str) -> dict[str, torch.Tensor]:
    if stem not in checkpoint.tensors:
        raise CheckpointError(f"checkpoint {checkpoint.name} holds no {stem}.safetensors, which this config needs")
    return checkpoint.tensors[stem]


class MovingAverage:
    """Exponential moving average of a model's parameters and floating-point buffers (Polyak and Juditsky 1992).

    The values are those of torch.optim.swa_utils.AveragedModel, which waits for the device at each step, as it copies
    its count of steps to it.
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        """Copy the model.

        Args:
            model: on its device.
            decay: weight of the old average in an update, in (0, 1).
        """
        self.module = deepcopy(model)
        self.num_updates = 0
        self._model = model
        self._decay = decay

    @torch.no_grad()
    def update(self) -> None:
        """Update the average: average ← decay × average + (1 − decay) × model.

        The first update, and every update of integers (BatchNorm's counts of steps), copies the model's values.
        """
        averages, weights = [], []
        # Looked up each time, since a model may replace a buffer by another tensor.
        for average, value in zip(_tensors_of(self.module), _tensors_of(self._model), strict=True):
            if average.is_floating_point():
                averages.append(average)
                weights.append(value)
            else:
                average.copy_(value)
        if self.num_updates == 0:
            torch._foreach_copy_(averages, weights)
        else:
            torch._foreach_lerp_(averages, weights, 1 - self._decay)
        self.num_updates += 1


def _tensors_of(module: nn.Module) -> chain[Tensor]:
    return chain(module.parameters(), module.buffers())
