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

from runner.checkpoint_writer import CheckpointWriter
from runner.console import LOGGER
from runner.data.balance import class_weights
from runner.data.fingerprint import fingerprint
from runner.data.loader import EvalBatches, TrainBatches
from runner.data.splits import Splits
from runner.data.transforms import (
    Normalizer,
    PackagedTransform,
    eval_transform,
    follow_weights,
    train_transform,
    with_normalize,
)
from runner.data.workers import resolve_workers
from runner.device import Precision, choose_memory_format
from runner.dist import DistContext
from runner.keyed_random import key
from runner.model import WeightsPreprocessing, build_architecture, build_model, head_of, with_versions
from runner.optimizer import build_optimizer
from runner.package import read_package
from runner.schema import Config
from runner.schema.data import DataConfig
from runner.stop import StopRequest
from runner.trainer.bad_images import BadImages
from runner.trainer.loop import Trainer
from runner.trainer.recorder import Recorder
from runner.trainer.weighting import Weighting


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
        **_counting(data, splits, train_batches, dist),
        data_fingerprint=fingerprint(splits),
        writer=writer,
        stop=stop,
        recorder=recorder,
    )
    return Assembled(trainer=trainer, data=data)


def preview_batches(config: Config, splits: Splits) -> TrainBatches:
    """The training images as one process would get them, to be looked at: without a model."""
    alone = DistContext(rank=0, local_rank=0, world_size=1, num_sharing_cores=1, device=torch.device("cpu"))
    return _batches(config, config.data, splits, alone)[0]


def _data_in_force(data: DataConfig, preprocessing: WeightsPreprocessing | None) -> DataConfig:
    if preprocessing is not None:
        data = follow_weights(data, **vars(preprocessing))
        LOGGER.info("preprocessing follows the weights: %s", preprocessing)
    return with_normalize(data)


def _counting(data: DataConfig, splits: Splits, batches: TrainBatches, dist: DistContext) -> dict[str, Any]:
    """What decides how much an image counts, and whether too many are bad."""
    is_weighted = data.balance == "loss_weights"
    weights = class_weights(splits.train.labels, len(splits.classes)) if is_weighted else None
    bad_images = tuple(
        BadImages(key, num_images=len(source), max_fraction=data.max_bad_fraction, is_logged=dist.is_main)
        for key, source in (("data.train", splits.train), ("data.val", splits.val))
    )
    return {"weighting": Weighting(batches, weights, dist.device), "bad_images": bad_images}


def _moving_average(model: nn.Module, decay: float | None) -> AveragedModel | None:
    if decay is None:
        return None
    average = get_ema_multi_avg_fn(decay)  # type: ignore[no-untyped-call]
    return AveragedModel(model, multi_avg_fn=average, use_buffers=True)


def _batches(config: Config, data: DataConfig, splits: Splits, dist: DistContext) -> tuple[TrainBatches, EvalBatches]:
    workers = resolve_workers(data.workers, dist.device.type, dist.num_sharing_cores)
    place = {"rank": dist.rank, "world_size": dist.world_size}
    pin_memory = dist.device.type == "cuda"
    skips_bad = data.on_bad_image == "skip"
    train = TrainBatches(
        source=splits.train,
        transform=train_transform(data),
        seed=config.seed,
        batch_size=data.batch_size,
        last_batch=data.last_batch,
        workers=workers,
        pin_memory=pin_memory,
        skips_bad=skips_bad,
        draws_balanced=data.balance == "sampler",
        **place,
    )
    val = EvalBatches(
        splits.val,
        eval_transform(data),
        batch_size=data.batch_size,
        workers=workers,
        pin_memory=pin_memory,
        skips_bad=skips_bad,
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
    package = read_package(Path(run_dir))
    card = package.card
    module = build_architecture(card.architecture, card.num_classes)
    module.load_state_dict(with_versions(safetensors.torch.load_file(package.weights_file), module))
    preprocessing = card.preprocessing
    return LoadedModel(
        module=module.eval(),
        transform=PackagedTransform(preprocessing.transforms, preprocessing.normalize),
        classes=card.classes,
    )
