"""Scores images with a packaged model, batch by batch, and appends the result to the unfinished file."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset, default_collate

from runner.base.console import LOGGER, ProgressLine, progress_line
from runner.base.errors import StoppedOnRequest
from runner.base.process import freed_memory_kept
from runner.base.stop import StopRequest
from runner.config.schema.calls import PredictCall
from runner.data.images.decode import open_image
from runner.data.images.transforms import Pipeline
from runner.data.loader.loader import made_by
from runner.data.loader.prepare import prepared
from runner.data.loader.workers import resolve_workers
from runner.data.sources.index import some, told
from runner.dist.device import choose_device, choose_precision, describe_device, set_determinism
from runner.evaluation.examine import Scorer
from runner.run.package import Package
from runner.tools.predict.formats import Scored
from runner.tools.predict.inputs import Inputs
from runner.tools.predict.partial import PartialScores
from runner.trainer.evaluate import NOT_FINITE, are_finite, first_guesses
from runner.training.assemble_trained import assemble_scorer
from runner.training.device_errors import BEFORE_THE_FIRST_BATCH, batch_too_large, device_errors_named

_SECONDS_BETWEEN_LINES = 10.0


class _Loaded(NamedTuple):
    """A batch of images, some of which may be unreadable."""

    images: Tensor
    """uint8 R × 3 × H × W, of those that can be read, channels last in memory."""
    errors: tuple[str | None, ...]
    """For each image of the batch why it can't be read."""


class _ImageFiles(Dataset["_Loaded"]):
    """Reads and prepares images on request, here or in a loader process."""

    def __init__(self, files: Sequence[str], pipeline: Pipeline, side: int) -> None:
        self._files = files
        self._pipeline = pipeline
        self._side = side

    def __getitem__(self, request: range) -> _Loaded:
        opened = [functools.partial(open_image, self._files[number]) for number in request]
        outcomes = [self._checked(outcome) for outcome in prepared(opened, self._pipeline)]
        images = [outcome.permute(1, 2, 0) for outcome in outcomes if isinstance(outcome, Tensor)]
        errors = [
            None if isinstance(outcome, Tensor) else outcome.removeprefix(f"{told(self._files[number])}: ")
            for number, outcome in zip(request, outcomes, strict=True)
        ]
        # In a loader process it stacks them in shared memory.
        stacked = default_collate(images) if images else torch.zeros(0, 1, 1, 3, dtype=torch.uint8)
        return _Loaded(images=stacked.permute(0, 3, 1, 2), errors=tuple(errors))

    def _checked(self, outcome: Tensor | str) -> Tensor | str:
        """An image of another size than the model takes fits into no batch."""
        if not isinstance(outcome, Tensor) or tuple(outcome.shape[1:]) == (self._side, self._side):
            return outcome
        height, width, side = *outcome.shape[1:], self._side
        return f"it has {width}×{height} pixels after the model's transforms, but the model takes {side}×{side}"


@freed_memory_kept()
def score(
    package: Package,
    inputs: Inputs,
    partial: PartialScores,
    *,
    call: PredictCall,
    stop: StopRequest,
) -> None:
    """Score all images that are not scored yet, and let the output appear; memory holds a few batches.

    Args:
        package: a verified package.
        inputs: the images.
        partial: begun; its rows are the first images of `inputs`.
        call: how: batch size, workers, device and precision.
        stop: asks to stop.

    Raises:
        StoppedOnRequest: what was scored is kept.
        OutputError: when the scores can't be written; what was written is kept.
        DeviceError: this machine lacks the device, memory has run out, or a process that loads images died.
    """
    scorer, pipeline = _set_up(package, call)
    device = scorer.dist.device
    first, total, started = partial.num_rows, len(inputs), time.perf_counter()
    LOGGER.info("images      %s%s", f"{total:,}", f", {first:,} of them scored before" if first else "")
    requests = _requests(first, total, call.batch_size)
    workers = min(resolve_workers(call.workers, device.type, 1), len(requests))
    files = _ImageFiles(inputs.files, pipeline, package.card.preprocessing.image_size)
    loaded = made_by(files, requests, workers=workers, pin_memory=device.type == "cuda")
    num_unread, unscored = 0, list[str]()
    shortage = batch_too_large("batch_size", call.batch_size)
    with device_errors_named(device, shortage), closing(loaded), progress_line() as line:
        show = _shower(line, first, total)
        for request in requests:
            if stop.received is not None:
                raise StoppedOnRequest(_stopped(stop.received, partial, total))
            batch = next(loaded)
            scored = _scored(scorer, batch, inputs, request, package.card.classes)
            partial.append(scored)
            num_unread += sum(error is not None for error in batch.errors)
            unscored += [name for name, error in zip(scored.names, scored.errors, strict=True) if error == NOT_FINITE]
            show(partial.num_rows)
    partial.finish()
    seconds = time.perf_counter() - started
    _warn(num_unread, unscored, total)
    LOGGER.info("scored      %s images in %.1f seconds", f"{total - first:,}", seconds)
    LOGGER.info("results     %s", partial.output)


def _warn(num_unread: int, unscored: Sequence[str], total: int) -> None:
    if num_unread:
        LOGGER.warning("%s of %s images can't be read; the column `error` says why", f"{num_unread:,}", f"{total:,}")
    if unscored:
        LOGGER.warning("%s of %s images have no scores: %s: %s", len(unscored), total, NOT_FINITE, some(unscored))


def _set_up(package: Package, call: PredictCall) -> tuple[Scorer, Pipeline]:
    device = choose_device(call, key="device")
    precision = choose_precision(call, device, key="precision")
    set_determinism(deterministic=False)
    LOGGER.info("device      %s, %s (%s)", describe_device(device), precision.name, precision.reason)
    with device_errors_named(device, BEFORE_THE_FIRST_BATCH):
        return assemble_scorer(package, device, precision)


def _requests(first: int, total: int, batch_size: int) -> list[range]:
    return [range(start, min(start + batch_size, total)) for start in range(first, total, batch_size)]


def _shower(line: ProgressLine, first: int, total: int) -> Callable[[int], None]:
    """Shows how many of the images are scored: live, or on a line now and then."""
    started = shown_at = time.perf_counter()

    def show(num_scored: int) -> None:
        nonlocal shown_at
        now = time.perf_counter()
        if line.is_live or now - shown_at > _SECONDS_BETWEEN_LINES:
            rate = (num_scored - first) / (now - started)
            line.update("scoring", f"{rate:,.0f} images/s", num_scored, total, unit="image")
            shown_at = now

    return show


@torch.inference_mode()
def _scored(scorer: Scorer, batch: _Loaded, inputs: Inputs, request: range, classes: Sequence[str]) -> Scored:
    probabilities = np.zeros((len(request), len(classes)), np.float32)
    predicted: list[str | None] = [None] * len(request)
    readable = [position for position, error in enumerate(batch.errors) if error is None]
    errors = list(batch.errors)
    if readable:
        logits = scorer.logits(batch.images)
        probabilities[readable] = logits.softmax(dim=1).cpu().numpy()
        guesses, is_finite = first_guesses(logits)[:, 0].tolist(), are_finite(logits).tolist()
        for position, guess, is_scored in zip(readable, guesses, is_finite, strict=True):
            predicted[position] = classes[guess] if is_scored else None
            errors[position] = None if is_scored else NOT_FINITE
    return Scored(
        names=[inputs.names[number] for number in request],
        labels=[inputs.labels[number] for number in request] if inputs.labels is not None else None,
        predicted=predicted,
        probabilities=probabilities,
        errors=errors,
    )


def _stopped(received: str, partial: PartialScores, total: int) -> str:
    kept = f"they are in {partial.path}: go on with resume=true" if partial.num_rows else "nothing is left behind"
    return f"stopped on {received} after {partial.num_rows:,} of {total:,} images; {kept}"
