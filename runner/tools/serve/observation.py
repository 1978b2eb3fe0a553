"""What a worker finds out about each image that it answers, and carries to the front process for its metrics.

This is where the watching of a served model hooks in, in two places:

- :func:`observed`, called in the worker for each image after its transforms, computes what needs pixels. A new field of
  :class:`Observation` is filled there, and travels to the front process as JSON by itself.
- An observer is a function that takes the version and the observations of one scored batch:
  `Service.observers.append(function)` in `runner/tools/serve/run_server.py`. It is called in the front process, in its
  one thread, once per batch and before the answers are sent, so it must be quick: count, and leave all else to a task
  of its own. Each version of a model has a folder, :attr:`ServedVersion.folder`, with all files of its package.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

    from runner.tools.serve.versions import ServedVersion


@dataclass(frozen=True, kw_only=True)
class Observation:
    """An image that was answered; nothing in it shows the image."""

    width: int
    """Of the image as it was sent, upright, in pixels."""
    height: int
    brightness: float
    """Mean of all pixels and channels after the model's transforms, before normalisation, in [0, 1]."""
    predicted: int
    """Index of the predicted class."""
    confidence: float
    """Probability of that class, in [0, 1]."""

    def to_json(self) -> dict[str, Any]:
        """As it travels from the worker."""
        return asdict(self)


Observer = Callable[["ServedVersion", Sequence[Observation]], None]
"""Called with the version that has scored a batch, and what was observed of its images."""


def observed(image: Tensor, size: tuple[int, int], predicted: int, confidence: float) -> Observation:
    """What is kept of an image.

    Args:
        image: after the transforms, channels × H × W: uint8, or of 16 bits float32 in [0, 1].
        size: width and height as it was sent.
        predicted: index of the predicted class.
        confidence: its probability.
    """
    from runner.evaluation.per_image import NUM_LEVELS, brightness_levels  # noqa: PLC0415 - imports torch

    return Observation(
        width=size[0],
        height=size[1],
        brightness=brightness_levels(image[None]).item() / NUM_LEVELS,
        predicted=predicted,
        confidence=confidence,
    )
