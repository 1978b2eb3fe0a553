"""What a checkpoint holds of a training, and how a training goes on from one."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from runner.base.errors import CheckpointError, NonFiniteLossError
from runner.base.keyed_random import digest_of_samples
from runner.dist.collectives import DistContext
from runner.model import with_versions
from runner.optimizer import load_named_state, named_state
from runner.run.checkpoint import Checkpoint
from runner.trainer.progress import Progress

if TYPE_CHECKING:
    from runner.trainer.loop import Trainer

CHECKPOINT_FORMAT = 1
_NUM_NEXT_IDS = 64
_DTYPES = {str(dtype): dtype for dtype in vars(torch).values() if isinstance(dtype, torch.dtype)}


def tensors_of(trainer: Trainer) -> dict[str, dict[str, torch.Tensor]]:
    """All tensors of a training, by file."""
    tensors = {
        "model": dict(trainer.model.state_dict()),
        "optimizer": named_state(trainer.optimizer, trainer.model),
    }
    if trainer.ema is not None:
        tensors["ema"] = dict(trainer.ema.module.state_dict())
    return tensors


def state_of(trainer: Trainer) -> dict[str, Any]:
    """Everything else, as plain values; every process must call it."""
    return {
        "format": CHECKPOINT_FORMAT,
        "progress": trainer.progress.to_json(),
        "meter": trainer.meter.to_json(trainer.dist),
        "learning_rate": trainer.learning_rate,
        "scaler": trainer.scaler.state_dict(),
        "ema_num_averaged": trainer.ema.num_updates if trainer.ema is not None else None,
        "next_ids_digest": _next_ids_digest(trainer),
        "data_fingerprint": trainer.data_fingerprint,
        "classes": list(trainer.classes),
        "numerics": numerics_of(trainer),
        "config": trainer.config.to_save(),
    }


def numerics_of(trainer: Trainer) -> dict[str, Any]:
    """What makes a difference to bits; a resumed run takes the same where it can."""
    return {
        "device": trainer.dist.device.type,
        "precision": trainer.precision.name,
        "memory_format": str(trainer.memory_format),
        "compile": trainer.config.trainer.compile,
        "num_threads": torch.get_num_threads(),
        "world_size": trainer.dist.world_size,
        "torch": str(torch.__version__),
    }


def refuse_spoilt_weights(trainer: Trainer) -> None:
    """Refuse to save weights that the last step has made infinite: the loss would only show it at the next one.

    Raises:
        NonFiniteLossError: the checkpoints before stand.
    """
    largest = torch._foreach_norm([*trainer.model.parameters()], float("inf"))
    if not bool(torch.stack(largest).isfinite().all()):
        raise NonFiniteLossError(
            f"the weights became infinite or not a number at epoch {trainer.progress.epoch + 1}, step "
            f"{trainer.progress.step}, learning rate {trainer.learning_rate:.3g}; try a lower optimizer.lr or "
            "trainer.clip_norm=1"
        )


def restore(trainer: Trainer, checkpoint: Checkpoint) -> None:
    """Let a freshly assembled training go on from a checkpoint of its run.

    Raises:
        CheckpointError: when the checkpoint is of another model or of other data.
    """
    for part in RESTORED:
        part(trainer, checkpoint)
    trainer.saved_name = checkpoint.name


def share_checkpoint(checkpoint: Checkpoint | None, dist: DistContext) -> Checkpoint | None:
    """Give every process the checkpoint that the main one has read, be its folder on a shared file system or not."""
    outline = None
    if checkpoint is not None:
        shapes = {
            stem: {name: (list(value.shape), str(value.dtype)) for name, value in group.items()}
            for stem, group in checkpoint.tensors.items()
        }
        outline = (checkpoint.name, checkpoint.state, shapes)
    outline = dist.share_object(outline)
    if outline is None:
        return None
    name, state, shapes = outline
    if checkpoint is None:
        tensors = {
            stem: {name: torch.empty(shape, dtype=_DTYPES[dtype]) for name, (shape, dtype) in group.items()}
            for stem, group in shapes.items()
        }
        checkpoint = Checkpoint(name=name, state=state, tensors=tensors)
    dist.share_tensors(value for group in checkpoint.tensors.values() for value in group.values())
    return checkpoint


def check_belongs(state: dict[str, Any], *, classes: tuple[str, ...], data_fingerprint: str, may_change: bool) -> None:
    """Refuse to go on with other data than before.

    Args:
        state: of the checkpoint.
        classes: of the data set as it is now.
        data_fingerprint: of the data set as it is now.
        may_change: whether the user has said that other images of the same classes are wanted.

    Raises:
        CheckpointError: naming what differs.
    """
    if state.get("format") != CHECKPOINT_FORMAT:
        found = str(state.get("format"))[:20]
        raise CheckpointError(f"the checkpoint has format {found}; this runner goes on from format {CHECKPOINT_FORMAT}")
    if tuple(state["classes"]) != classes:
        gone, come = sorted(set(state["classes"]) - set(classes)), sorted(set(classes) - set(state["classes"]))
        raise CheckpointError(
            f"the data set has other classes than the run was started with: gone {gone or 'none'}, new {come or 'none'}"
            "; start a new run"
        )
    if state["data_fingerprint"] != data_fingerprint and not may_change:
        raise CheckpointError(
            "the data set has other images than the run was started with (names, number or order differ), so it would "
            "go on with the wrong ones; restore it, start a new run, or say that you want it with 'resume.allow=[data]'"
        )


def _model(trainer: Trainer, checkpoint: Checkpoint) -> None:
    _load(trainer.model, checkpoint, "model")


def _optimizer(trainer: Trainer, checkpoint: Checkpoint) -> None:
    load_named_state(trainer.optimizer, trainer.model, _tensors(checkpoint, "optimizer"))


def _ema(trainer: Trainer, checkpoint: Checkpoint) -> None:
    if trainer.ema is not None:
        _load(trainer.ema.module, checkpoint, "ema")
        trainer.ema.num_updates = checkpoint.state["ema_num_averaged"]


def _scaler(trainer: Trainer, checkpoint: Checkpoint) -> None:
    # Empty where the run computed in another format so far: the scaler finds its scale anew.
    if checkpoint.state["scaler"]:
        try:
            trainer.scaler.load_state_dict(checkpoint.state["scaler"])
        except (KeyError, RuntimeError) as error:
            raise CheckpointError(f"checkpoint {checkpoint.name}: the scaler's state is damaged: {error}") from error


def _progress(trainer: Trainer, checkpoint: Checkpoint) -> None:
    trainer.progress = Progress.from_json(checkpoint.state["progress"])
    trainer.learning_rate = checkpoint.state["learning_rate"]


def _meter(trainer: Trainer, checkpoint: Checkpoint) -> None:
    trainer.meter.restore(checkpoint.state["meter"], is_main=trainer.dist.is_main)
    trainer.bad_train.begin(checkpoint.state["meter"].get("skipped", 0))


def _check_next_ids(trainer: Trainer, checkpoint: Checkpoint) -> None:
    is_same_data = checkpoint.state["data_fingerprint"] == trainer.data_fingerprint
    if is_same_data and trainer.dist.is_main:
        _check_images_so_far(trainer, checkpoint)
    if is_same_data and checkpoint.state["next_ids_digest"] != _next_ids_digest(trainer):
        raise CheckpointError(
            f"checkpoint {checkpoint.name} would go on with other images than it left off at; it was written with "
            "another seed or another order of images: start a new run"
        )


def _check_images_so_far(trainer: Trainer, checkpoint: Checkpoint) -> None:
    """What the checkpoint has counted of the epoch in progress is what seed and epoch ask for up to its position."""
    progress, counted = trainer.progress, trainer.meter.read()
    asked = trainer.train_batches.next_ids(progress.epoch, 0, progress.position)
    is_right = counted.count + counted.skipped == len(asked) == progress.position
    if not is_right or counted.samples_digest != digest_of_samples(0, asked):
        raise CheckpointError(
            f"checkpoint {checkpoint.name} is damaged: the images that it counts in the epoch in progress are not "
            "those that its seed asks for"
        )


def _next_ids_digest(trainer: Trainer) -> int:
    progress = trainer.progress
    return digest_of_samples(0, trainer.train_batches.next_ids(progress.epoch, progress.position, _NUM_NEXT_IDS))


def _load(module: nn.Module, checkpoint: Checkpoint, stem: str) -> None:
    try:
        module.load_state_dict(with_versions(_tensors(checkpoint, stem), module))
    except RuntimeError as error:
        raise CheckpointError(f"checkpoint {checkpoint.name} fits another model than this one: {error}") from error


def _tensors(checkpoint: Checkpoint, stem: str) -> dict[str, torch.Tensor]:
    if stem not in checkpoint.tensors:
        raise CheckpointError(f"checkpoint {checkpoint.name} holds no {stem}.safetensors, which this config needs")
    return checkpoint.tensors[stem]


# In this order. There is no generator among them: whatever is random is a function of seed, epoch and position.
RESTORED: tuple[Callable[[Trainer, Checkpoint], None], ...] = (
    _model,
    _optimizer,
    _ema,
    _scaler,
    _progress,
    _meter,
    _check_next_ids,
)
