"""The model in a worker: images as they were sent become probabilities, as `predict` computes them."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from runner.base.errors import (
    CheckpointError,
    ConfigError,
    ExportError,
    InvalidDatasetError,
    InvalidModelError,
    Problem,
)
from runner.base.files import locked
from runner.base.reasons import first_line
from runner.config.schema.calls.of_serving import ServeRules
from runner.config.schema.checks.parts import UnusablePartError, find_entry_point
from runner.config.schema.transforms import height_and_width
from runner.data.images.decode import open_received
from runner.data.images.stored import InputFormat, StoredImage
from runner.data.loader.prepare import Outcome, prepare_images
from runner.dist.device import choose_device, choose_num_threads, choose_precision, describe_device, set_determinism
from runner.run.package import Package, read_package
from runner.tools.export.formats import open_exported, wrap, write
from runner.tools.predict.score import checked_size, stacked
from runner.tools.serve.observation import Observation, observed
from runner.trainer.evaluate import NOT_FINITE, are_finite, first_guesses
from runner.training.assemble_trained import assemble_scorer

SERVING = "runner.serving"
MODEL_DIR = "RUNNER_MODEL_DIR"
"""Environment variable with the package's folder, for the `init` of an entry."""
_IMAGE = "image"  # what messages call it; the client's own name of a file is never repeated
_LARGEST_DIFFERENCE = 1e-3  # of logits, relative to the largest: the rounding of another library


class Answers(NamedTuple):
    """Of each image of a batch, either an error or a row of probabilities with what was observed."""

    probabilities: npt.NDArray[np.float32]
    """Shape (N, classes); without meaning where there is an error."""
    errors: list[str | None]
    observations: list[Observation | None]


class ServedModel:
    """A package on a device."""

    def __init__(self, folder: Path, rules: ServeRules, *, number: int) -> None:
        """Load a package.

        Args:
            folder: of the package, which nobody else changes.
            rules: device, precision, format, limits.
            number: of this worker, from 0; it takes that GPU, in turns.

        Raises:
            RunnerError: the package is damaged, or this machine can't compute it.
        """
        package = read_package(folder)
        preprocessing = package.card.preprocessing
        torch.set_num_threads(choose_num_threads(rules.workers))
        num_devices = torch.cuda.device_count() if rules.device in ("auto", "cuda") else 0
        device = choose_device(rules, number % max(num_devices, 1), key="serve.device")
        if rules.format == "onnx":
            rules, device = rules.model_copy(update={"precision": "fp32"}), torch.device("cpu")
        precision = choose_precision(rules, device, key="serve.precision")
        set_determinism(deterministic=False)
        self.classes = package.card.classes
        self.description = f"{describe_device(device)}, {precision.name} ({precision.reason})"
        self._form = InputFormat.of(preprocessing)
        self._size = height_and_width(preprocessing.image_size)
        self._max_pixels = rules.max_pixels
        self._scorer, self._pipeline = assemble_scorer(package, device, precision)
        self._logits: Callable[[Tensor], Tensor] = self._scorer.logits
        if rules.format == "onnx":
            self._logits = self._by_onnx(package, folder)
            self.description += ", by ONNX Runtime"
        self._entry = _entry(rules.entry, folder) if rules.entry is not None else None
        self._warm_up(rules.max_batch_size)

    @torch.inference_mode()
    def answer(self, contents: Sequence[bytes]) -> Answers:
        """Decode and score the images of a batch."""
        if self._entry is not None:  # it gets the pixels of the whole batch
            return self._by_entry([self._opened(content) for content in contents])
        prepared, sizes = self._prepared(contents)
        outcomes = [checked_size(outcome, self._size) for outcome in prepared]
        probabilities = np.zeros((len(contents), len(self.classes)), np.float32)
        errors: list[str | None] = [outcome if isinstance(outcome, str) else None for outcome in outcomes]
        observations: list[Observation | None] = [None] * len(contents)
        images = {position: outcome for position, outcome in enumerate(outcomes) if isinstance(outcome, Tensor)}
        if images:
            logits = self._logits(stacked(list(images.values()), self._form))
            probabilities[list(images)] = logits.softmax(dim=1).cpu().numpy()
            guesses, finite = first_guesses(logits)[:, 0].tolist(), are_finite(logits).tolist()
            for (position, image), guess, is_finite in zip(images.items(), guesses, finite, strict=True):
                errors[position] = None if is_finite else NOT_FINITE
                observations[position] = _observed(image, sizes[position], guess, probabilities[position])
        return Answers(probabilities, errors, observations)

    def _opened(self, content: bytes) -> StoredImage | str:
        """The image, or why it is refused."""
        try:
            stored = open_received(content, _IMAGE, self._max_pixels, self._form)
        except InvalidDatasetError as error:
            return _said(str(error))
        except MemoryError:
            return "it needs more memory than there is"
        # Scaled by its shorter side, a strip of one row would get millions of columns.
        ratio = max(stored.width, stored.height) / min(stored.width, stored.height)
        if ratio * max(self._size) ** 2 > self._max_pixels:
            return f"it has {stored.width:,} × {stored.height:,} pixels, which is too narrow to be scaled"
        return stored

    def _prepared(self, contents: Sequence[bytes]) -> tuple[list[Outcome], list[tuple[int, int]]]:
        """The images after the transforms, and their widths and heights.

        Those that are decoded at once have no more pixels than two may have.
        """
        outcomes: list[Outcome] = []
        sizes: list[tuple[int, int]] = []
        group: list[StoredImage] = []
        for content in contents:
            image = self._opened(content)
            sizes.append((0, 0) if isinstance(image, str) else (image.width, image.height))
            if isinstance(image, str):
                outcomes += self._transformed(group)
                outcomes.append(image)
                group = []
                continue
            if group and sum(one.width * one.height for one in (*group, image)) > self._max_pixels:
                outcomes += self._transformed(group)
                group = []
            group.append(image)
        return outcomes + self._transformed(group), sizes

    def _transformed(self, group: Sequence[StoredImage]) -> list[Outcome]:
        try:
            outcomes = prepare_images([lambda image=image: image for image in group], self._pipeline)  # type: ignore[misc]
        except Exception as error:  # libraries raise anything for sizes that a transform can't take
            if len(group) == 1:
                return [f"the model's transforms can't take it: {type(error).__name__}"]
            return [outcome for image in group for outcome in self._transformed([image])]
        return [_said(outcome) if isinstance(outcome, str) else outcome for outcome in outcomes]

    def _by_entry(self, stored: Sequence[StoredImage | str]) -> Answers:
        probabilities = np.zeros((len(stored), len(self.classes)), np.float32)
        errors: list[str | None] = [image if isinstance(image, str) else None for image in stored]
        observations: list[Observation | None] = [None] * len(stored)
        pixels: dict[int, Any] = {}
        for position, image in enumerate(stored):
            if isinstance(image, str):
                continue
            try:
                pixels[position] = image.pixels()
            except InvalidDatasetError as error:
                errors[position] = _said(str(error))
        if pixels:
            assert self._entry is not None
            found = np.asarray(self._entry.run(list(pixels.values())), np.float32)
            if found.shape != (len(pixels), len(self.classes)):
                wanted = (len(pixels), len(self.classes))
                raise InvalidModelError(f"serve.entry: run(images) returned the shape {found.shape}; expected {wanted}")
            probabilities[list(pixels)] = found
        for position, array in pixels.items():
            is_finite = bool(np.isfinite(probabilities[position]).all())
            errors[position] = None if is_finite else NOT_FINITE
            seen = torch.from_numpy(array).permute(2, 0, 1)
            shown = seen if array.dtype == np.uint8 else seen.float() / 65535
            guess = int(probabilities[position].argmax())
            image = stored[position]
            assert not isinstance(image, str), "it has pixels"
            size = (image.width, image.height)
            observations[position] = _observed(shown, size, guess, probabilities[position])
        return Answers(probabilities, errors, observations)

    def _by_onnx(self, package: Package, folder: Path) -> Callable[[Tensor], Tensor]:
        """The exported model; the first worker of a version exports it, and the others take its file."""
        file = folder / "model.onnx"
        scorer, preprocessing = self._scorer, package.card.preprocessing
        with locked(folder / "export.lock", wait_seconds=600.0), torch.inference_mode(mode=False), torch.no_grad():
            if not file.exists():
                wrapped = wrap(scorer.module, preprocessing, include_preprocessing=False)
                temporary = file.with_suffix(".partial")
                write("onnx", wrapped, {}, temporary)
                temporary.rename(file)
        run = open_exported("onnx", file)
        example = torch.randn(2, preprocessing.channels, *self._size)
        with torch.no_grad():
            expected, found = scorer.module(example), run(example)
        if not (found - expected).abs().max() <= _LARGEST_DIFFERENCE * expected.abs().max().clamp(min=1):
            raise ExportError("serve.format = onnx: ONNX Runtime computes other outputs than PyTorch; use torch")
        return lambda images: run(scorer.normalizer(images))

    def _warm_up(self, max_batch_size: int) -> None:
        if self._entry is not None:
            return
        channels, (height, width) = self._form.channels, self._size
        dtype = torch.uint8 if self._form.bit_depth == 8 else torch.float32
        with torch.inference_mode():
            for count in {1, max_batch_size}:
                self._logits(stacked([torch.zeros(channels, height, width, dtype=dtype)] * count, self._form)).cpu()


def _observed(image: Tensor, size: tuple[int, int], guess: int, probabilities: npt.NDArray[np.float32]) -> Observation:
    return observed(image, size, guess, float(probabilities[guess]))


def _said(message: str) -> str:
    """The message of an error without the name of the file, and by the server's own key."""
    return message.removeprefix(f"{_IMAGE}: ").replace("data.max_pixels", "serve.max_pixels")


def _entry(name: str, folder: Path) -> Any:  # noqa: ANN401 - the user's own
    """The object behind an entry point, after its `init`.

    Raises:
        ConfigError: it is not installed, can't be used, or `init` fails.
    """
    os.environ[MODEL_DIR] = str(folder)
    try:
        part = find_entry_point(SERVING, name).load()()
        if not (callable(getattr(part, "init", None)) and callable(getattr(part, "run", None))):
            raise UnusablePartError("must be a class with the methods init() and run(images)")  # noqa: TRY301
        part.init()
    except CheckpointError:
        raise
    except UnusablePartError as error:
        raise ConfigError([Problem(key="serve.entry", value=name, has_value=True, message=str(error))]) from error
    except Exception as error:  # a user's class may raise anything
        message = f"({SERVING}) can't be used: {type(error).__name__}: {first_line(error)}"
        raise ConfigError([Problem(key="serve.entry", value=name, has_value=True, message=message)]) from error
    return part
