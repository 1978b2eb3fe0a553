"""Exports a trained model into a new file or folder, published only once it was run and compared with PyTorch."""

from __future__ import annotations

import importlib.metadata
import math
import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from runner.base.errors import ExportError, InvalidDatasetError
from runner.base.files import named_write_errors, publish, sha256_of, temporary_beside, write_json
from runner.data.images.stored import InputFormat
from runner.data.images.transforms import Normalizer, Pipeline, as_tensor, pipeline_of
from runner.data.source import ImageSource
from runner.tools.export import NAMES, Format, description_of
from runner.tools.export.formats import Wrapped, open_exported, wrap, write
from runner.tools.export.triton import MODEL_FILE, complete_model_folder
from runner.training.assemble_trained import TrainedModel

MOST_IMAGES = 1000
_BATCH_SIZE = 32


@dataclass(frozen=True, kw_only=True)
class ExportRequest:
    """What to export and where to."""

    format: Format
    output: Path
    """A file that does not exist yet; of Triton a folder."""
    include_preprocessing: bool
    min_agreement: float
    """Smallest allowed share of images with the same top-1 class, in [0, 1]."""
    origin: dict[str, Any]
    """Metadata about the source of the model: run, git commit and the like."""


def export(trained: TrainedModel, images: ImageSource, request: ExportRequest) -> Agreement:
    """Write the model, run it, compare it with PyTorch, and publish it.

    Args:
        trained: the model, with its preprocessing and classes.
        images: the images on which both models are compared.
        request: format, output and the like.

    Raises:
        ExportError: the model can't be exported, or does not agree with PyTorch; no file is left then.
        OutputError: the file can't be written, or was created meanwhile.
    """
    preprocessing = trained.preprocessing
    wrapped = wrap(
        trained.module,
        preprocessing,
        include_preprocessing=request.include_preprocessing,
    )
    metadata = _metadata(trained, wrapped, request)
    with _work_folder(request.output) as folder:
        whole = folder / NAMES[request.format]
        file = whole / MODEL_FILE if request.format == "triton" else whole
        file.parent.mkdir(parents=True, exist_ok=True)
        write(request.format, wrapped, metadata, file)
        agreement = _agreement(file, wrapped, trained, images, request)
        named = f"{request.output.name}/{MODEL_FILE}" if request.format == "triton" else request.output.name
        facts = {"file": named, "bytes": file.stat().st_size, "sha256": sha256_of(file)}
        if request.format == "triton":
            complete_model_folder(whole, request.output.name, wrapped, trained.classes)
        publish(whole, request.output)
        checked = {**vars(agreement), "top1_agreement": agreement.top1_agreement}
        write_json(description_of(request.output), {**facts, **metadata, "agreement": checked})
    return agreement


@contextmanager
def _work_folder(output: Path) -> Iterator[Path]:
    """A temporary folder beside the output; the output's own folder is removed too if it was created and is empty."""
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


def _agreement(
    file: Path, wrapped: Wrapped, trained: TrainedModel, images: ImageSource, request: ExportRequest
) -> Agreement:
    batches = ValidationImages(
        images, pipeline_of(trained.preprocessing.transforms, InputFormat.of(trained.preprocessing))
    )
    found = compare(
        open_exported(request.format, file),
        _pairs(batches, trained, include_preprocessing=request.include_preprocessing),
    )
    found = replace(found, num_unreadable=batches.num_unreadable)
    if found.top1_agreement < request.min_agreement:
        raise ExportError(
            f"the exported model agrees with PyTorch on {found.num_agreeing:,} of {found.count:,} validation images "
            f"(top-1 agreement {found.top1_agreement:.4%}, largest difference {found.largest_difference:.3g}), "
            f"which is below min_agreement = {request.min_agreement:g}; no file is kept"
        )
    return found


@torch.no_grad()
def _pairs(
    batches: Iterable[Tensor], trained: TrainedModel, *, include_preprocessing: bool
) -> Iterator[tuple[Tensor, Tensor]]:
    """Inputs for the exported model, each with PyTorch's outputs for the same pixels."""
    normalizer = Normalizer(trained.preprocessing.normalize)
    for pixels in batches:
        normalized = normalizer(pixels)
        logits = trained.module(normalized)
        yield (pixels.permute(0, 2, 3, 1), logits.softmax(dim=1)) if include_preprocessing else (normalized, logits)


def _metadata(trained: TrainedModel, wrapped: Wrapped, request: ExportRequest) -> dict[str, Any]:
    return {
        "producer": f"runner {importlib.metadata.version('runner')}, torch {torch.__version__}",
        "format": request.format,
        "classes": list(trained.classes),
        "input": wrapped.input,
        "output": wrapped.output,
        "preprocessing": trained.preprocessing.model_dump(mode="json"),
        "architecture": trained.architecture.name,
        "weights": trained.origin,
        **request.origin,
    }


@dataclass(frozen=True, kw_only=True)
class Agreement:
    """How far the exported model and PyTorch agree."""

    count: int
    """Images that both models have scored."""
    num_agreeing: int
    """Images with the same top-1 class."""
    largest_difference: float
    """Largest absolute difference of any output."""
    largest_output: float
    """Largest absolute output of PyTorch, as the scale for `largest_difference`."""
    num_unreadable: int
    """Images that were left out because they can't be read."""

    @property
    def top1_agreement(self) -> float:
        """Share of images with the same top-1 class, in [0, 1]."""
        return self.num_agreeing / self.count


def compare(exported: Callable[[Tensor], Tensor], pairs: Iterable[tuple[Tensor, Tensor]]) -> Agreement:
    """Run the exported model and compare its outputs.

    Args:
        exported: the exported model, from its file.
        pairs: batches of inputs, each with the N × classes outputs of PyTorch.

    Raises:
        ExportError: an output is not finite or of another shape.
    """
    count = num_agreeing = 0
    largest = largest_output = 0.0
    for inputs, expected in pairs:
        with torch.no_grad():
            found = exported(inputs)
        if found.shape != expected.shape:
            raise ExportError(
                f"for {len(inputs)} images the file gives {tuple(found.shape)}, PyTorch {tuple(expected.shape)}"
            )
        difference = (found - expected).abs().max().item()
        if not difference < math.inf:
            raise ExportError("the exported model, or the model itself, gives values that are not finite")
        largest = max(largest, difference)
        largest_output = max(largest_output, expected.abs().max().item())
        count += len(inputs)
        num_agreeing += int((found.argmax(dim=1) == expected.argmax(dim=1)).sum())
    return Agreement(
        count=count,
        num_agreeing=num_agreeing,
        largest_difference=largest,
        largest_output=largest_output,
        num_unreadable=0,
    )


class ValidationImages:
    """Up to 1,000 images spread evenly over a split, as batches N × channels × height × width, N = 1, then 32."""

    def __init__(self, source: ImageSource, pipeline: Pipeline) -> None:
        self.num_unreadable = 0
        self._source = source
        self._pipeline = pipeline

    def __iter__(self) -> Iterator[Tensor]:
        """The batches; the first one has a single image, so that two batch sizes are tried.

        Raises:
            InvalidDatasetError: none of the images can be read.
        """
        self.num_unreadable = 0
        size, batch, num_read = 1, list[Tensor](), 0
        chosen = np.linspace(0, len(self._source) - 1, min(MOST_IMAGES, len(self._source)), dtype=np.int64)
        failure: InvalidDatasetError | None = None
        for image in chosen.tolist():
            try:
                batch.append(self._pipeline(as_tensor(self._source.open(image).pixels())))
            except InvalidDatasetError as error:
                failure = failure or error
                self.num_unreadable += 1
                continue
            num_read += 1
            if len(batch) == size:
                yield torch.stack(batch)
                size, batch = _BATCH_SIZE, []
        if batch:
            yield torch.stack(batch)
        if num_read == 0 and failure is not None:
            raise failure
