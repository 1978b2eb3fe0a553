"""Scores images with a packaged model, batch by batch, and appends the scores to the unfinished file."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from typing import Literal, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.utils.data import Dataset, default_collate

from runner.base.console import LOGGER, ProgressLine, progress_line
from runner.base.errors import StoppedOnRequest
from runner.base.process import freed_memory_kept
from runner.base.stop import StopRequest
from runner.config.schema.transforms import height_and_width
from runner.data.images.decode import open_image
from runner.data.images.stored import InputFormat, StoredImage
from runner.data.images.transforms import Pipeline
from runner.data.loader.loader import load_items
from runner.data.loader.prepare import prepare_images
from runner.data.loader.workers import resolve_workers
from runner.data.sources.index import name_list, printable_path
from runner.dist.device import choose_device, choose_precision, describe_device, set_determinism
from runner.evaluation.image_features import ImageFeatures
from runner.evaluation.per_image import NUM_LEVELS, Scorer, brightness_levels
from runner.run.package import Package, Preprocessing
from runner.tools.predict.inputs import Inputs
from runner.tools.predict.outputs import Scored
from runner.tools.predict.partial import PartialScores
from runner.trainer.evaluate import NOT_FINITE, are_finite, first_guesses
from runner.training.assemble_trained import assemble_scorer
from runner.training.device_errors import BEFORE_THE_FIRST_BATCH, batch_size_advice, named_device_errors

_SECONDS_BETWEEN_LINES = 10.0


class _Loaded(NamedTuple):
    """A batch of images, some of which may be unreadable."""

    images: Tensor
    """Pixels R × channels × H × W: the R readable images, channels last in memory."""
    errors: tuple[str | None, ...]
    """For each image of the batch why it can't be read."""
    sizes: npt.NDArray[np.int32]
    """Height and width of each image of the batch before the transforms, in pixels, shape (N, 2)."""


class _ImageFiles(Dataset["_Loaded"]):
    """Reads and transforms images, in this process or in a loader process."""

    def __init__(self, files: Sequence[str], pipeline: Pipeline, preprocessing: Preprocessing) -> None:
        self._files = files
        self._pipeline = pipeline
        self._form = InputFormat.of(preprocessing)
        self._size = height_and_width(preprocessing.image_size)

    def __getitem__(self, request: range) -> _Loaded:
        sizes = np.zeros((len(request), 2), np.int32)
        opened = [functools.partial(self._opened, number, sizes[place]) for place, number in enumerate(request)]
        outcomes = [checked_size(outcome, self._size) for outcome in prepare_images(opened, self._pipeline)]
        errors = [
            None if isinstance(outcome, Tensor) else outcome.removeprefix(f"{printable_path(self._files[number])}: ")
            for number, outcome in zip(request, outcomes, strict=True)
        ]
        images = [outcome for outcome in outcomes if isinstance(outcome, Tensor)]
        return _Loaded(images=stacked(images, self._form), errors=tuple(errors), sizes=sizes)

    def _opened(self, number: int, size: npt.NDArray[np.int32]) -> StoredImage:
        """Open an image, and write down its height and width."""
        stored = open_image(self._files[number], form=self._form)
        size[:] = stored.height, stored.width
        return stored


def checked_size(outcome: Tensor | str, size: tuple[int, int]) -> Tensor | str:
    """A prepared image, or an error where its height and width are not those that the model takes."""
    if not isinstance(outcome, Tensor) or tuple(outcome.shape[1:]) == size:
        return outcome
    height, width = outcome.shape[1:]
    wanted = f"{size[1]}×{size[0]}"
    return f"it has {width}×{height} pixels after the model's transforms, but the model takes {wanted}"


def stacked(images: Sequence[Tensor], form: InputFormat) -> Tensor:
    """Prepared images, each channels × H × W, as a batch N × channels × H × W that has its channels last in memory."""
    if not images:
        return torch.zeros(0, 1, 1, form.channels, dtype=torch.uint8).permute(0, 3, 1, 2)
    # In a loader process default_collate stacks in shared memory.
    batch: Tensor = default_collate([image.permute(1, 2, 0) for image in images])
    return batch.permute(0, 3, 1, 2)


class ScoringCall(Protocol):
    """The keys of a command that scores images."""

    @property
    def batch_size(self) -> int:
        """Images that are scored at once."""

    @property
    def workers(self) -> Literal["auto"] | int:
        """Processes that load images."""

    @property
    def device(self) -> Literal["auto", "cpu", "cuda", "mps"]:
        """Where to compute."""

    @property
    def precision(self) -> Literal["auto", "fp32", "bf16", "fp16"]:
        """Number format."""


@freed_memory_kept()
def score(
    package: Package,
    inputs: Inputs,
    partial: PartialScores,
    *,
    call: ScoringCall,
    stop: StopRequest,
) -> None:
    """Score all images that are not scored yet, and finish the output; memory holds a few batches.

    Args:
        package: a verified package.
        inputs: the images.
        partial: after `begin`; its rows are the first images of `inputs`.
        call: batch size, workers, device and precision.
        stop: ends the scoring after a batch.

    Raises:
        StoppedOnRequest: a signal asked for it; the scores so far are kept.
        OutputError: the scores can't be written; those written before are kept.
        DeviceError: this machine lacks the device, memory has run out, or a process that loads images died.
    """

    def say_what_is_kept() -> str:
        return f"they are in {partial.path}: resume with resume=true" if partial.num_rows else "no file is left"

    batches = scored_batches(package, inputs, call=call, stop=stop, first=partial.num_rows, if_stopped=say_what_is_kept)
    num_unread, unscored = 0, list[str]()
    with closing(batches):
        for scored, _ in batches:
            partial.append(scored)
            num_unread += sum(error not in (None, NOT_FINITE) for error in scored.errors)
            unscored += [name for name, error in zip(scored.names, scored.errors, strict=True) if error == NOT_FINITE]
    partial.finish()
    _warn(num_unread, unscored, len(inputs))
    LOGGER.info("results     %s", partial.output)


def scored_batches(
    package: Package,
    inputs: Inputs,
    *,
    call: ScoringCall,
    stop: StopRequest,
    first: int = 0,
    if_stopped: Callable[[], str],
) -> Generator[tuple[Scored, ImageFeatures], None, None]:
    """Score images batch by batch; with each batch come the features of its images that have scores.

    Args:
        package: a verified package.
        inputs: the images.
        call: batch size, workers, device and precision.
        stop: ends the scoring after a batch.
        first: number of the first image to score.
        if_stopped: says what is kept of the scores so far.

    Raises:
        StoppedOnRequest: a signal asked for it.
        DeviceError: this machine lacks the device, memory has run out, or a process that loads images died.
    """
    scorer, pipeline = _set_up(package, call)
    device = scorer.dist.device
    total, started = len(inputs), time.perf_counter()
    LOGGER.info("images      %s%s", f"{total:,}", f", {first:,} of them scored before" if first else "")
    requests = [range(start, min(start + call.batch_size, total)) for start in range(first, total, call.batch_size)]
    workers = min(resolve_workers(call.workers, device.type, 1), len(requests))
    files = _ImageFiles(inputs.files, pipeline, package.card.preprocessing)
    loaded = load_items(files, requests, workers=workers, pin_memory=device.type == "cuda")
    shortage = batch_size_advice("batch_size", call.batch_size)
    with named_device_errors(device, shortage), closing(loaded), progress_line() as line:
        show = _progress(line, first, total)
        for request in requests:
            if stop.received is not None:
                raise StoppedOnRequest(
                    f"stopped on {stop.received} after {request.start:,} of {total:,} images; {if_stopped()}"
                )
            batch = next(loaded)
            yield _scored(scorer, batch, inputs, request, package.card.classes)
            show(request.stop)
    LOGGER.info("scored      %s images in %.1f seconds", f"{total - first:,}", time.perf_counter() - started)


def _warn(num_unread: int, unscored: Sequence[str], total: int) -> None:
    if num_unread:
        LOGGER.warning("%s of %s images can't be read; the column `error` says why", f"{num_unread:,}", f"{total:,}")
    if unscored:
        LOGGER.warning("%s of %s images have no scores: %s: %s", len(unscored), total, NOT_FINITE, name_list(unscored))


def _set_up(package: Package, call: ScoringCall) -> tuple[Scorer, Pipeline]:
    device = choose_device(call, key="device")
    precision = choose_precision(call, device, key="precision")
    set_determinism(deterministic=False)
    LOGGER.info("device      %s, %s (%s)", describe_device(device), precision.name, precision.reason)
    with named_device_errors(device, BEFORE_THE_FIRST_BATCH):
        return assemble_scorer(package, device, precision)


def _progress(line: ProgressLine, first: int, total: int) -> Callable[[int], None]:
    """A function that shows the number of scored images: live, or as a line every 10 seconds."""
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
def _scored(
    scorer: Scorer, batch: _Loaded, inputs: Inputs, request: range, classes: Sequence[str]
) -> tuple[Scored, ImageFeatures]:
    probabilities = np.zeros((len(request), len(classes)), np.float32)
    predicted: list[str | None] = [None] * len(request)
    readable = [position for position, error in enumerate(batch.errors) if error is None]
    errors = list(batch.errors)
    guesses, is_finite = np.zeros(0, np.int64), np.zeros(0, np.bool_)
    if readable:
        logits = scorer.logits(batch.images)
        probabilities[readable] = logits.softmax(dim=1).cpu().numpy()
        guesses, is_finite = first_guesses(logits)[:, 0].cpu().numpy(), are_finite(logits).cpu().numpy()
        for position, guess, is_scored in zip(readable, guesses.tolist(), is_finite.tolist(), strict=True):
            predicted[position] = classes[guess] if is_scored else None
            errors[position] = None if is_scored else NOT_FINITE
    scored = Scored(
        names=[inputs.names[number] for number in request],
        labels=[inputs.labels[number] for number in request] if inputs.labels is not None else None,
        predicted=predicted,
        probabilities=probabilities,
        errors=errors,
    )
    sizes = batch.sizes[readable][is_finite]
    levels = brightness_levels(batch.images).numpy() if readable else np.zeros(0, np.int64)
    features = ImageFeatures(
        brightness=levels[is_finite] / NUM_LEVELS,
        width=sizes[:, 1],
        height=sizes[:, 0],
        confidence=probabilities[readable, guesses][is_finite].astype(np.float64),
        predicted=guesses[is_finite],
    )
    return scored, features
