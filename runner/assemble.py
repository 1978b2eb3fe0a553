"""The one place where the parts of a run are built and put together; the only importer of the builders."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from runner.checkpoint import Checkpoint, CheckpointStore
from runner.checkpoint_writer import CheckpointWriter
from runner.console import LOGGER
from runner.data.fingerprint import fingerprint
from runner.data.loader import EvalBatches, TrainBatches
from runner.data.splits import Splits
from runner.data.transforms import (
    Normalizer,
    PackagedTransform,
    eval_transform,
    follow_weights,
    train_transform,
)
from runner.data.workers import resolve_workers
from runner.device import Precision, choose_memory_format
from runner.dist import DistContext
from runner.errors import CheckpointError
from runner.files import sha256_of
from runner.keyed_random import key
from runner.model import (
    WeightsPreprocessing,
    build_architecture,
    build_model,
    head_of,
    weights_preprocessing,
    with_versions,
)
from runner.optimizer import build_optimizer
from runner.package import Package, Preprocessing, read_package
from runner.run_folder import read_record
from runner.schema import Config
from runner.schema.data import DataConfig
from runner.schema.model import ModelConfig
from runner.stop import StopRequest
from runner.trainer.loop import Trainer
from runner.trainer.recorder import Recorder


@dataclass(frozen=True, kw_only=True)
class Assembled:
    """The parts of a run, put together."""

    trainer: Trainer
    data: DataConfig
    """The data config in force: where weights bring their own preprocessing, it follows them."""


def assemble(
    config: Config,
    splits: Splits,
    writer: CheckpointWriter,
    *,
    dist: DistContext,
    precision: Precision,
    stop: StopRequest,
    recorder: Recorder | None,
) -> Assembled:
    """Build model, data, optimizer and trainer of one process.

    Raises:
        InvalidModelError: when the model can't be built or its weights don't fit.
    """
    # The same first weights in every process, whatever was drawn before.
    torch.manual_seed(key(config.seed, "model"))
    built = build_model(config.model, len(splits.classes))
    data = _data_in_force(config.data, built.preprocessing)
    if built.preprocessing is not None:
        LOGGER.info("preprocessing follows the weights: %s", built.preprocessing)
    memory_format = choose_memory_format(dist.device, precision, data.image_size)
    module = built.module
    if config.dist.sync_batchnorm and dist.world_size > 1:
        module = nn.SyncBatchNorm.convert_sync_batchnorm(module)  # type: ignore[no-untyped-call]
    model = module.to(dist.device).to(memory_format=memory_format)
    if config.trainer.compile:
        model.compile()
    train_batches, val_batches = _batches(config, data, splits, dist)
    trainer = Trainer(
        config=config,
        dist=dist,
        precision=precision,
        classes=splits.classes,
        model=model,
        head=head_of(model, config.model) if config.trainer.freeze_backbone_epochs else None,
        ema=_moving_average(model, config.trainer.ema_decay),
        normalizer=Normalizer(data.normalize).to(dist.device),
        memory_format=memory_format,
        optimizer=build_optimizer(config.optimizer, model),
        train_batches=train_batches,
        val_batches=val_batches,
        data_fingerprint=fingerprint(splits),
        writer=writer,
        stop=stop,
        recorder=recorder,
    )
    return Assembled(trainer=trainer, data=data)


def _data_in_force(data: DataConfig, preprocessing: WeightsPreprocessing | None) -> DataConfig:
    """Where weights bring their own preprocessing, the data config follows them."""
    return data if preprocessing is None else follow_weights(data, **vars(preprocessing))


def _moving_average(model: nn.Module, decay: float | None) -> AveragedModel | None:
    if decay is None:
        return None
    average = get_ema_multi_avg_fn(decay)  # type: ignore[no-untyped-call]
    return AveragedModel(model, multi_avg_fn=average, use_buffers=True)


def _batches(config: Config, data: DataConfig, splits: Splits, dist: DistContext) -> tuple[TrainBatches, EvalBatches]:
    workers = resolve_workers(data.workers, dist.device.type, dist.num_sharing_cores)
    place = {"rank": dist.rank, "world_size": dist.world_size}
    pin_memory = dist.device.type == "cuda"
    train = TrainBatches(
        source=splits.train,
        transform=train_transform(data),
        seed=config.seed,
        batch_size=data.batch_size,
        last_batch=data.last_batch,
        workers=workers,
        pin_memory=pin_memory,
        **place,
    )
    val = EvalBatches(
        splits.val,
        eval_transform(data),
        batch_size=data.batch_size,
        workers=workers,
        pin_memory=pin_memory,
        **place,
    )
    return train, val


@dataclass(frozen=True, kw_only=True)
class LoadedModel:
    """A packaged model, ready to score images."""

    module: nn.Module
    """In eval mode, on the CPU, fp32: float32 N × 3 × H × W → logits N × classes."""
    transform: Callable[..., torch.Tensor]
    """A PIL image, a uint8 array H × W × 3 or a uint8 tensor 3 × H × W → float32 3 × H × W."""
    classes: tuple[str, ...]
    """Class names in index order."""


def load_model(run_dir: str | Path) -> LoadedModel:
    """Open the packaged model of a run.

    Args:
        run_dir: a run folder, or its `model/` folder alone.

    Raises:
        CheckpointError: when there is no package, or it is damaged or of a newer format.
        InvalidModelError: when a custom model is no longer installed.
    """
    trained = _packaged(read_package(Path(run_dir)))
    preprocessing = trained.preprocessing
    return LoadedModel(
        module=trained.module,
        transform=PackagedTransform(preprocessing.transforms, preprocessing.normalize),
        classes=trained.classes,
    )


@dataclass(frozen=True, kw_only=True)
class TrainedModel:
    """A model of a run, with what it takes to use it."""

    module: nn.Module
    """In eval mode, on the CPU, fp32: float32 N × 3 × H × W → logits N × classes."""
    architecture: ModelConfig
    preprocessing: Preprocessing
    classes: tuple[str, ...]
    """Class names in index order."""
    origin: dict[str, Any]
    """Which weights these are: their checkpoint or package, raw or averaged, and their SHA-256."""


def load_trained(run_dir: Path, config: Config, checkpoint: str) -> TrainedModel:
    """Load weights of a run.

    Args:
        run_dir: the run folder.
        config: the saved config of the run.
        checkpoint: `best` (of a completed run its package: raw or averaged weights, as it chose), `last`, or the name
            of a checkpoint; of a checkpoint that is not the best one the raw weights.

    Raises:
        CheckpointError: when the run has no such checkpoint, or it is damaged.
        InvalidModelError: when a custom model is no longer installed.
    """
    is_packaged = read_record(run_dir)["status"] == "completed" and (run_dir / "model").is_dir()
    if checkpoint == "best" and is_packaged:
        return _packaged(read_package(run_dir))
    found = _checkpoint(CheckpointStore(run_dir / "checkpoints", keep=1), checkpoint)
    best = found.state["progress"]["best"]
    is_averaged = best is not None and best["checkpoint"] == found.name and best["weights"] == "ema"
    kind = "ema" if is_averaged else "model"
    classes = tuple(found.state["classes"])
    module = build_architecture(config.model, len(classes))
    module.load_state_dict(with_versions(found.tensors[kind], module))
    data = _data_in_force(config.data, weights_preprocessing(config.model))
    return TrainedModel(
        module=module.eval(),
        architecture=config.model,
        preprocessing=Preprocessing(
            image_size=data.image_size, transforms=data.eval_transforms, normalize=data.normalize
        ),
        classes=classes,
        origin={
            "checkpoint": found.name,
            "kind": "ema" if is_averaged else "raw",
            "sha256": sha256_of(run_dir / "checkpoints" / found.name / f"{kind}.safetensors"),
        },
    )


def _checkpoint(store: CheckpointStore, wanted: str) -> Checkpoint:
    name: str | None
    match wanted:
        case "best" | "last" as pointer:
            name = store.pointed(pointer)
        case _:
            name = wanted
    if name is None or name not in store.names():
        there = f"there are {', '.join(store.names())}" if store.names() else "the run has not saved any yet"
        raise CheckpointError(f"{store.folder.parent} has no checkpoint {wanted!r}; {there}")
    return store.load(name)


def _packaged(package: Package) -> TrainedModel:
    card = package.card
    module = build_architecture(card.architecture, card.num_classes)
    module.load_state_dict(with_versions(safetensors.torch.load_file(package.weights_file), module))
    return TrainedModel(
        module=module.eval(),
        architecture=card.architecture,
        preprocessing=card.preprocessing,
        classes=card.classes,
        origin={"checkpoint": "best", "kind": card.weights_kind, "sha256": card.weights_sha256},
    )
