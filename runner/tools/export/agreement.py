"""Whether an exported model says what PyTorch says, on real images."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from runner.base.errors import ExportError, InvalidDatasetError
from runner.data.images.transforms import Pipeline, as_tensor
from runner.data.source import ImageSource

MOST_IMAGES = 1000
_BATCH_SIZE = 32


@dataclass(frozen=True, kw_only=True)
class Agreement:
    """How two models agree."""

    count: int
    """Images that both have scored."""
    num_agreeing: int
    """Images with the same first guess."""
    largest_difference: float
    """Of any output of any image, absolute."""
    largest_output: float
    """Of PyTorch's outputs, absolute: what the largest difference is to be measured by."""
    num_unreadable: int
    """Images that could not be read and were left out."""

    @property
    def top1_agreement(self) -> float:
        """Share of images with the same first guess, in [0, 1]."""
        return self.num_agreeing / self.count


def compare(exported: Callable[[Tensor], Tensor], pairs: Iterable[tuple[Tensor, Tensor]]) -> Agreement:
    """Run the exported model and compare.

    Args:
        exported: the exported model, from its file.
        pairs: batches of inputs, each with the N × classes that PyTorch says of it.

    Raises:
        ExportError: when an output is not finite or of another shape.
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
    """Up to 1,000 images spread evenly over a split, as uint8 batches N × 3 × size × size of 1 and of 32."""

    def __init__(self, source: ImageSource, pipeline: Pipeline) -> None:
        self.num_unreadable = 0
        self._source = source
        self._pipeline = pipeline

    def __iter__(self) -> Iterator[Tensor]:
        """The batches; the first one has a single image, so that more than one batch size is tried.

        Raises:
            InvalidDatasetError: when none of the images can be read.
        """
        self.num_unreadable = 0
        size, batch, num_read = 1, list[Tensor](), 0
        chosen = np.linspace(0, len(self._source) - 1, min(MOST_IMAGES, len(self._source)), dtype=np.int64)
        failure: InvalidDatasetError | None = None
        for image in chosen.tolist():
            try:
                batch.append(self._pipeline(as_tensor(self._source.load(image))))
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
