"""Builds the parts of a training; only `assemble_trained` and `teacher` beside it import the builders too."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from functools import partial

import torch
from torch import nn

from runner.base.console import LOGGER
from runner.base.errors import DeviceError
from runner.base.keyed_random import key
from runner.base.stop import StopRequest
from runner.config.schema import Config
from runner.config.schema.data import DataConfig
from runner.data.cache.cache_policy import CachePolicy, MemoryBudgetError, bytes_once_prepared, decide_cache_policy
from runner.data.cache.memory import format_bytes
from runner.data.cache.on_device import DeviceImages, check_device_memory, load_onto
from runner.data.cache.pixel_cache import cache_pixels
from runner.data.fingerprint import fingerprint
from runner.data.images.batched import BatchedTransforms, split_transforms
from runner.data.images.stored import InputFormat
from runner.data.images.transforms import (
    Normalizer,
    early_transforms,
    eval_transform,
    follow_weights,
    pipeline_of,
    train_transform,
    with_normalize,
)
from runner.data.loader.batch import Batch
from runner.data.loader.loader import EvalBatches, TrainBatches
from runner.data.loader.order import class_weights
from runner.data.loader.workers import resolve_workers
from runner.data.source import ImageSource
from runner.data.splits import Splits
from runner.dist.collectives import DistContext
from runner.dist.device import Precision, choose_memory_format
from runner.evaluation.per_image import EvaluationSplit
from runner.model import StartingWeights, build_model, head_of, weights_preprocessing
from runner.optimizer import build_optimizer, peak_learning_rate
from runner.run.checkpoint_writer import CheckpointWriter
from runner.trainer.activations import checkpoint_activations
from runner.trainer.bad_images import BadImages
from runner.trainer.loop import Trainer
from runner.trainer.metrics_log import Recorder
from runner.trainer.state import MovingAverage, Placement, TrainingState
from runner.trainer.training_images import TrainingImages, Weighting
from runner.training.parameter_groups import log_groups, parameter_groups
from runner.training.teacher import build_teacher

_NUM_LOADED_AT_ONCE = 256


@dataclass(frozen=True, kw_only=True)
class Assembled:
    """The parts of a training."""

    trainer: Trainer
    data: DataConfig
    """The effective data config; see :func:`effective_data`."""
    test: EvaluationSplit | None
    """What this process evaluates of the test split; None without one."""


def assemble(
    config: Config,
    splits: Splits,
    writer: CheckpointWriter,
    *,
    dist: DistContext,
    precision: Precision,
    stop: StopRequest,
    recorder: Recorder | None,
    pruner: Callable[[int], str | None] | None = None,
    cache_policy: CachePolicy | None = None,
    weights: StartingWeights = "download",
) -> Assembled:
    """Build model, data, optimizer and trainer of one process.

    Args:
        config, splits, writer, dist, precision, stop, recorder, pruner: see :class:`runner.trainer.loop.Trainer`.
        cache_policy: which decoded images stay in memory; by default it follows from config and splits.
        weights: where the model's first weights come from.

    Raises:
        InvalidModelError: the model can't be built or its weights don't fit.
    """
    # So that every process gets the same first weights.
    torch.manual_seed(key(config.seed, "model"))
    built = build_model(config.model, len(splits.classes), weights, num_channels=config.data.channels)
    data = effective_data(config)
    cache_policy = cache_policy or _agreed_cache_policy(data, splits, dist)
    data = cache_policy.applied_to(data)
    memory_format = choose_memory_format(dist.device, precision, data.image_size)
    checkpoint_activations(built.module, config.model)
    model = _placed(built.module, config, dist, memory_format)
    images = _images(config, data, splits, cache_policy, dist)
    placement = Placement(dist=dist, precision=precision, memory_format=memory_format, stop=stop)
    groups = parameter_groups(config, model)
    if config.optimizer.groups or config.optimizer.layer_decay is not None:
        log_groups(groups, model, peak_learning_rate(config.optimizer, dist.world_size))
    state = TrainingState(
        model,
        build_optimizer(config.optimizer, model, groups),
        placement,
        head=head_of(model, config.model) if config.trainer.freeze_backbone_epochs else None,
        ema=MovingAverage(model, config.trainer.ema_decay) if config.trainer.ema_decay is not None else None,
    )
    teacher = build_teacher(config, dist, memory_format)
    trainer = Trainer(
        config, state, images, placement, writer=writer, teacher=teacher, recorder=recorder, pruner=pruner
    )
    test = evaluation_split(data, "data.test", splits.test, dist) if splits.test is not None else None
    return Assembled(trainer=trainer, data=data, test=test)


def _agreed_cache_policy(data: DataConfig, splits: Splits, dist: DistContext) -> CachePolicy:
    """The cache policy that the main process decides for all."""
    decided = decide_cache_policy(data, splits.train, len(splits.val)) if dist.is_main else None
    return CachePolicy(**dist.broadcast_object(None if decided is None else asdict(decided)))


def _placed(module: nn.Module, config: Config, dist: DistContext, memory_format: torch.memory_format) -> nn.Module:
    """The model on the device, in its memory format, with SyncBatchNorm and compiled if the config says so."""
    if config.dist.sync_batchnorm and dist.world_size > 1:
        module = nn.SyncBatchNorm.convert_sync_batchnorm(module)  # type: ignore[no-untyped-call]
    model = module.to(dist.device).to(memory_format=memory_format)
    if config.trainer.compile:
        model.compile()
    return model


def effective_data(config: Config, *, say: Callable[[str], object] = LOGGER.info) -> DataConfig:
    """The data config with a normalisation, and with the preprocessing that pretrained weights bring along, if any.

    Args:
        config: complete and checked.
        say: called with sentences on what the weights bring along.
    """
    data, preprocessing = config.data, weights_preprocessing(config.model)
    if preprocessing is not None and not data.follow_weights:
        say("preprocessing is that of data, not that of the weights (data.follow_weights=false)")
    elif preprocessing is not None:
        data = follow_weights(data, **vars(preprocessing))
        say(f"preprocessing follows the weights: {preprocessing}")
        if data.channels != len(preprocessing.mean):
            say(f"but mean and std are those of data.normalize, as data.channels = {data.channels}")
    return with_normalize(data)


def preview_batches(config: Config, splits: Splits) -> TrainBatches:
    """The training batches as a single process would get them, for a preview without a model."""
    alone = DistContext(rank=0, local_rank=0, world_size=1, num_sharing_cores=1, device=torch.device("cpu"))
    data = decide_cache_policy(config.data, splits.train, num_evaluation_images=0).applied_to(config.data)
    # A preview needs no cache; but with data.cache=device, crops are drawn in another way.
    uncached = {"cache": "device" if config.data.cache == "device" else "none"}
    return _train_batches(config, data.model_copy(update=uncached), splits.train, alone)


def _images(
    config: Config, data: DataConfig, splits: Splits, cache_policy: CachePolicy, dist: DistContext
) -> TrainingImages:
    num_kept = -(-len(splits.val) // dist.world_size) if cache_policy.evaluation else 0
    train_batches = _train_batches(
        config, data, cached_in_memory(splits.train, data, cache_policy, dist, num_kept), dist
    )
    is_weighted = data.balance == "loss_weights"
    weights = class_weights(splits.train.labels, len(splits.classes)) if is_weighted else None
    return TrainingImages(
        train_batches=train_batches,
        val_batches=_eval_batches(data, splits.val, dist, _kept_on(data, dist, num_kept)),
        normalizer=Normalizer(data.normalize).to(dist.device),
        weighting=Weighting(train_batches, weights, dist.device),
        bad_train=_bad_images(data, "data.train", splits.train, dist),
        bad_val=_bad_images(data, "data.val", splits.val, dist),
        classes=splits.classes,
        fingerprint=fingerprint(splits),
    )


def _bad_images(data: DataConfig, key: str, source: ImageSource, dist: DistContext) -> BadImages:
    return BadImages(key, num_images=len(source), max_fraction=data.max_bad_fraction, is_logged=dist.is_main)


def cached_in_memory(
    source: ImageSource,
    data: DataConfig,
    cache_policy: CachePolicy,
    dist: DistContext,
    num_kept: int,
    *,
    say: Callable[[str], object] = LOGGER.info,
) -> ImageSource:
    """The training split, cached in memory if the policy says so.

    Args:
        source: the training split.
        data: the effective data config.
        cache_policy: of the training.
        dist: rank and process group.
        num_kept: evaluation images that each process caches beside it.
        say: logs a message.

    Raises:
        DeviceError: data.cache=memory demands it, and there is too little memory.
    """
    if cache_policy.training != "memory":
        return source
    try:
        kept = cache_pixels(
            source,
            cache_policy.decoded_bytes,
            dist.broadcast_object(uuid.uuid4().hex),
            partial(dist.total, 0),
            is_asked_for=cache_policy.is_asked_for,
            evaluation_bytes=dist.num_sharing_cores * num_kept * bytes_once_prepared(data, data.eval_image_size),
            form=InputFormat.of(data),
        )
    except MemoryBudgetError as reason:
        if cache_policy.is_asked_for:
            raise DeviceError(f"data.cache=memory: {reason}; use data.cache=none") from reason
        say(
            f"cache       training images are decoded in each epoch: {reason} (data.cache=memory keeps them if it can; "
            "data.cache=none decodes JPEGs no larger than their crops need)"
        )
        return source
    size = format_bytes(cache_policy.decoded_bytes)
    say(f"cache       training images stay in memory once they are decoded: about {size}")
    return kept


def _train_batches(config: Config, data: DataConfig, source: ImageSource, dist: DistContext) -> TrainBatches:
    batches = TrainBatches(
        source=source,
        preparation=train_transform(data),
        seed=config.seed,
        batch_size=data.fixed_batch_size,
        last_batch=data.last_batch,
        workers=resolve_workers(data.workers, dist.device.type, dist.num_sharing_cores),
        rank=dist.rank,
        world_size=dist.world_size,
        pin_memory=dist.device.type == "cuda",
        skips_bad=data.on_bad_image == "skip",
        draws_balanced=data.balance == "sampler",
        repeats=data.repeats,
        early=early_transforms(data),
    )
    if data.cache != "device":
        return batches
    return replace(batches, on_device=_on_device(data, batches, dist))


def _on_device(data: DataConfig, batches: TrainBatches, dist: DistContext) -> DeviceImages:
    """All training images, after those transforms that are always the same, on this process's device."""
    transforms = split_transforms(data.train_transforms)
    assert isinstance(transforms, BatchedTransforms), "the config's checks refuse other transforms"
    loaded = EvalBatches(
        batches.source,
        pipeline_of(transforms.fixed, InputFormat.of(data)),
        batch_size=_NUM_LOADED_AT_ONCE,
        rank=0,
        world_size=1,
        workers=batches.workers,
        pin_memory=batches.pin_memory,
        skips_bad=batches.skips_bad,
    )
    with closing(loaded):
        images, bad = load_onto(dist.device, _with_heartbeat(loaded, dist), transforms, len(batches.source))
    labels = batches.source.labels
    return DeviceImages(images, labels, transforms, size=data.image_size, seed=batches.seed, bad=bad)


def _with_heartbeat(batches: EvalBatches, dist: DistContext) -> Iterator[Batch]:
    for _, batch in batches:
        dist.heartbeat()
        yield batch


def evaluation_split(data: DataConfig, key: str, source: ImageSource, dist: DistContext) -> EvaluationSplit:
    """What this process evaluates of a split; `key` is the split's config key, for messages."""
    return EvaluationSplit(
        source=source, batches=_eval_batches(data, source, dist), bad_images=_bad_images(data, key, source, dist)
    )


def _kept_on(data: DataConfig, dist: DistContext, num_kept: int) -> torch.device | None:
    """The device on which this many evaluation images stay between epochs; None without any."""
    if num_kept == 0:
        return None
    if data.cache != "device":
        return torch.device("cpu")
    image_bytes = bytes_once_prepared(data, data.eval_image_size)
    check_device_memory(dist.device, "images of evaluation of each process", num_kept, image_bytes)
    return dist.device


def _eval_batches(
    data: DataConfig, source: ImageSource, dist: DistContext, kept_on: torch.device | None = None
) -> EvalBatches:
    return EvalBatches(
        source,
        eval_transform(data),
        batch_size=data.fixed_batch_size,
        workers=resolve_workers(data.workers, dist.device.type, dist.num_sharing_cores),
        rank=dist.rank,
        world_size=dist.world_size,
        pin_memory=dist.device.type == "cuda",
        skips_bad=data.on_bad_image == "skip",
        kept_on=kept_on,
    )
