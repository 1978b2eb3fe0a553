"""Builds trained models: for evaluation, for scoring, for export and for `runner.load_model`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from runner.config.schema import Config
from runner.config.schema.model import ModelConfig
from runner.config.schema.transforms import Normalize
from runner.data.images.stored import InputFormat
from runner.data.images.transforms import Normalizer, PackagedTransform, Pipeline, pipeline_of
from runner.data.splits import Splits
from runner.dist.collectives import DistContext, single_process
from runner.dist.device import Precision, choose_memory_format
from runner.evaluation.per_image import EvaluationSplit, Scorer
from runner.evaluation.weights import WeightsChoice, choose_weights, load_weights, packaged_weights
from runner.model import build_architecture, check_trained
from runner.run.contents import read_classes
from runner.run.package import Package, Preprocessing, preprocessing_of, read_package
from runner.training.assemble import effective_data, evaluation_split


def assemble_evaluation(
    config: Config, splits: Splits, split: str, file: Path, *, dist: DistContext, precision: Precision
) -> tuple[Scorer, EvaluationSplit]:
    """Build the model and the images of an evaluation; every process must call it.

    Args:
        config: of the run, complete and checked.
        splits: its `val` is evaluated, whichever split of the data set that is.
        split: name of that split.
        file: the weights, which the main process reads.
        dist: rank and process group.
        precision: number format of the forward pass.

    Raises:
        CheckpointError: the weights are of another model.
        InvalidModelError: a custom model is no longer installed.
    """
    data = effective_data(config)
    if dist.is_main:
        check_trained(file, config.model, len(splits.classes), data.channels)
    module = build_architecture(config.model, len(splits.classes), data.channels)
    load_weights(module, file, dist)
    scorer = _scorer(module, data.normalize, data.eval_image_size, dist, precision)
    if config.trainer.compile:
        scorer.module.compile()
    return scorer, evaluation_split(data, f"data.{split}", splits.val, dist)


def _scorer(
    module: nn.Module, normalize: Normalize, image_size: int | tuple[int, int], dist: DistContext, precision: Precision
) -> Scorer:
    memory_format = choose_memory_format(dist.device, precision, image_size)
    return Scorer(
        module=module.eval().to(dist.device).to(memory_format=memory_format),
        normalizer=Normalizer(normalize).to(dist.device),
        dist=dist,
        precision=precision,
        memory_format=memory_format,
    )


def assemble_scorer(package: Package, device: torch.device, precision: Precision) -> tuple[Scorer, Pipeline]:
    """Build a packaged model and its preprocessing, to score images in one process.

    Returns:
        The model, and the transforms for the pixels of an image. Both give the same bits as
        at evaluation, unless that ran with trainer.deterministic.

    Raises:
        InvalidModelError: a custom model is not installed.
    """
    preprocessing = package.card.preprocessing
    module, size = _packaged_module(package), preprocessing.image_size
    scorer = _scorer(module, preprocessing.normalize, size, single_process(device), precision)
    return scorer, pipeline_of(preprocessing.transforms, InputFormat.of(preprocessing))


def _packaged_module(package: Package) -> nn.Module:
    card, file = package.card, package.weights_file
    num_channels = card.preprocessing.channels
    check_trained(file, card.architecture, card.num_classes, num_channels)
    module = build_architecture(card.architecture, card.num_classes, num_channels)
    load_weights(module, file, single_process(torch.device("cpu")))
    return module.eval()


@dataclass(frozen=True, kw_only=True)
class LoadedModel:
    """A packaged model, ready to score images."""

    module: nn.Module
    """In eval mode, on the CPU, fp32: float32 N × channels × H × W → logits N × classes."""
    transform: Callable[..., torch.Tensor]
    """A PIL image, an array H × W × channels or a tensor channels × H × W → float32 channels × H × W; see
    :class:`runner.data.images.transforms.PackagedTransform`."""
    classes: tuple[str, ...]
    """Class names in index order."""


def load_packaged(path: Path) -> LoadedModel:
    """Load a packaged model.

    Args:
        path: a run folder, or the package folder itself.

    Raises:
        CheckpointError: there is no package, or it is damaged or of a newer format.
        InvalidModelError: a custom model is no longer installed.
    """
    package = read_package(path)
    preprocessing = package.card.preprocessing
    return LoadedModel(
        module=_packaged_module(package),
        transform=PackagedTransform(preprocessing.transforms, preprocessing.normalize, InputFormat.of(preprocessing)),
        classes=package.card.classes,
    )


@dataclass(frozen=True, kw_only=True)
class TrainedModel:
    """A model of a run, with its preprocessing and classes."""

    module: nn.Module
    """In eval mode, on the CPU, fp32: float32 N × channels × H × W → logits N × classes."""
    architecture: ModelConfig
    preprocessing: Preprocessing
    classes: tuple[str, ...]
    """Class names in index order."""
    origin: dict[str, Any]
    """The weights' checkpoint, whether they are raw or averaged, and their SHA-256."""


def trained_of_package(package: Package) -> TrainedModel:
    """The model of a package.

    Raises:
        CheckpointError: the weights don't fit.
        InvalidModelError: a custom model is no longer installed.
    """
    card = package.card
    chosen = packaged_weights(package)
    return TrainedModel(
        module=_packaged_module(package),
        architecture=card.architecture,
        preprocessing=card.preprocessing,
        classes=card.classes,
        origin=chosen.to_json(),
    )


def load_trained(run_dir: Path, config: Config, checkpoint: str, weights: WeightsChoice = "auto") -> TrainedModel:
    """Load weights of a run.

    Args:
        run_dir: the run folder.
        config: the saved config of the run.
        checkpoint: name of a checkpoint; see :func:`runner.evaluation.weights.choose_weights`.
        weights: raw, averaged, or automatic.

    Raises:
        CheckpointError: the run has no such checkpoint, or it is damaged.
        InvalidModelError: a custom model is no longer installed.
    """
    chosen = choose_weights(run_dir, checkpoint, weights)
    classes, data = read_classes(run_dir), effective_data(config)
    check_trained(chosen.file, config.model, len(classes), data.channels)
    module = build_architecture(config.model, len(classes), data.channels)
    load_weights(module, chosen.file, single_process(torch.device("cpu")))
    return TrainedModel(
        module=module.eval(),
        architecture=config.model,
        preprocessing=preprocessing_of(data),
        classes=classes,
        origin=chosen.to_json(),
    )
