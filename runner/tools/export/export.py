"""Exports a trained model into one new file, which appears only once it has been run and compared."""

from __future__ import annotations

import importlib.metadata
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from runner.base.errors import ExportError
from runner.base.files import named_write_errors, publish, sha256_of, temporary_beside, write_json
from runner.data.images.transforms import Normalizer, pipeline_of
from runner.data.source import ImageSource
from runner.tools.export import SUFFIXES, Format, description_of
from runner.tools.export.agreement import Agreement, ValidationImages, compare
from runner.tools.export.formats import open_exported, write
from runner.tools.export.wrapped import Wrapped, wrap
from runner.training.assemble_trained import TrainedModel


@dataclass(frozen=True, kw_only=True)
class Order:
    """What is asked for."""

    format: Format
    output: Path
    """A file that is not there yet."""
    include_preprocessing: bool
    min_agreement: float
    """Smallest share of images with the same first guess, in [0, 1]."""
    origin: dict[str, Any]
    """Where the model comes from, for the metadata: run, git commit and the like."""


def export(trained: TrainedModel, images: ImageSource, order: Order) -> Agreement:
    """Write, run, compare, and only then keep.

    Args:
        trained: the model, with its preprocessing and classes.
        images: the images on which both are compared.
        order: what is asked for.

    Raises:
        ExportError: when the model can't be exported, or does not agree; no file is left then.
        OutputError: when the file can't be written, or has come there meanwhile.
    """
    preprocessing = trained.preprocessing
    wrapped = wrap(
        trained.module,
        preprocessing.normalize,
        image_size=preprocessing.image_size,
        include_preprocessing=order.include_preprocessing,
    )
    metadata = _metadata(trained, wrapped, order)
    with _work_folder(order.output) as folder:
        file = folder / f"model.{SUFFIXES[order.format]}"
        write(order.format, wrapped, metadata, file)
        agreement = _agreement(file, wrapped, trained, images, order)
        facts = {"file": order.output.name, "bytes": file.stat().st_size, "sha256": sha256_of(file)}
        publish(file, order.output)
        checked = {**vars(agreement), "top1_agreement": agreement.top1_agreement}
        write_json(description_of(order.output), {**facts, **metadata, "agreement": checked})
    return agreement


@contextmanager
def _work_folder(output: Path) -> Iterator[Path]:
    """A folder beside the output, gone at the end; that of the output too, if it was made for nothing."""
    is_new = not output.parent.exists()
    folder = temporary_beside(output)
    with named_write_errors(output):
        output.parent.mkdir(exist_ok=True)
        folder.mkdir()
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        if is_new and not any(output.parent.iterdir()):
            output.parent.rmdir()


def _agreement(file: Path, wrapped: Wrapped, trained: TrainedModel, images: ImageSource, order: Order) -> Agreement:
    batches = ValidationImages(images, pipeline_of(trained.preprocessing.transforms))
    found = compare(
        open_exported(order.format, file),
        _pairs(batches, trained, include_preprocessing=order.include_preprocessing),
    )
    found = replace(found, num_unreadable=batches.num_unreadable)
    if found.top1_agreement < order.min_agreement:
        raise ExportError(
            f"the exported model agrees with PyTorch on {found.num_agreeing:,} of {found.count:,} validation images "
            f"(top-1 agreement {found.top1_agreement:.4%}, largest difference {found.largest_difference:.3g}), "
            f"which is below min_agreement = {order.min_agreement:g}; no file is kept"
        )
    return found


@torch.no_grad()
def _pairs(
    batches: Iterable[Tensor], trained: TrainedModel, *, include_preprocessing: bool
) -> Iterator[tuple[Tensor, Tensor]]:
    """Inputs of the exported model, and what the trained model, as it is used elsewhere, makes of the same pixels."""
    normalizer = Normalizer(trained.preprocessing.normalize)
    for pixels in batches:
        normalized = normalizer(pixels)
        logits = trained.module(normalized)
        yield (pixels.permute(0, 2, 3, 1), logits.softmax(dim=1)) if include_preprocessing else (normalized, logits)


def _metadata(trained: TrainedModel, wrapped: Wrapped, order: Order) -> dict[str, Any]:
    return {
        "producer": f"runner {importlib.metadata.version('runner')}, torch {torch.__version__}",
        "format": order.format,
        "classes": list(trained.classes),
        "input": wrapped.input,
        "output": wrapped.output,
        "preprocessing": trained.preprocessing.model_dump(mode="json"),
        "architecture": trained.architecture.name,
        "weights": trained.origin,
        **order.origin,
    }
