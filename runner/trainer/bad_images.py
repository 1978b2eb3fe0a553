"""Images that can't be read, where data.on_bad_image = skip: logged once, counted, limited by data.max_bad_fraction."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import nn

from runner.base.console import FILE_ONLY, LOGGER
from runner.base.errors import InvalidDatasetError
from runner.data.loader.batch import BadImage

_MOST_ON_THE_TERMINAL = 10
_NUM_EXAMPLES = 3


class BadImages:
    """The bad images of one split, over all processes; every process holds the same."""

    def __init__(self, key: str, *, num_images: int, max_fraction: float, is_logged: bool) -> None:
        self._key = key
        self._num_images = num_images
        self._max_fraction = max_fraction
        self._is_logged = is_logged
        self._reasons: dict[int, str] = {}
        self.num_in_epoch = 0
        """Images that the epoch in progress, or one evaluation, asked for and skipped."""

    def reset(self, num_in_epoch: int = 0) -> None:
        """Set the count, for the next epoch or evaluation; images that were logged are not logged again."""
        self.num_in_epoch = num_in_epoch

    def add(self, bad: Sequence[BadImage]) -> None:
        """Count the images that all processes skipped, and log those that were not logged yet.

        Raises:
            InvalidDatasetError: more than data.max_bad_fraction of the split are bad.
        """
        for image, reason in bad:
            if image not in self._reasons:
                self._reasons[image] = reason
                self._log(reason)
        self.num_in_epoch += len(bad)
        if self.num_in_epoch > self._max_fraction * self._num_images:
            raise InvalidDatasetError(
                f"{self._key}: at least {self.num_in_epoch} of {self._num_images} images can't be read, more than "
                f"data.max_bad_fraction = {self._max_fraction:g}; mend or remove them: {self._examples()}"
            )

    def summary(self) -> str | None:
        """One sentence on all bad images so far; None without any."""
        if not self._reasons:
            return None
        return f"{self._key}: {len(self._reasons)} of {self._num_images} images were skipped: {self._examples()}"

    def _log(self, reason: str) -> None:
        if not self._is_logged:
            return
        number = len(self._reasons)
        LOGGER.warning(
            "%s: skipped a bad image: %s", self._key, reason, extra=FILE_ONLY if number > _MOST_ON_THE_TERMINAL else {}
        )
        if number == _MOST_ON_THE_TERMINAL:
            LOGGER.warning("%s: further bad images are named in the log file only", self._key)

    def _examples(self) -> str:
        shown = [self._reasons[image] for image in sorted(self._reasons)[:_NUM_EXAMPLES]]
        return "; ".join(shown) + ("; …" if len(self._reasons) > len(shown) else "")


@contextmanager
def padded_batch(images: torch.Tensor, shape: tuple[int, int, int], model: nn.Module) -> Iterator[torch.Tensor]:
    """Pad a batch that has lost its bad images, so that the model can run a forward and a backward pass on it.

    A single image is doubled: BatchNorm can't train on one value per channel, and the statistics stay the same. An
    empty batch becomes two black images, as a user's model may not support an empty one (`x.view(n, -1)`), and all
    layers are in eval mode meanwhile, so that the black images change no statistics: the process still has to take
    part in the all-reduce, with gradients of zero. A model with SyncBatchNorm gets the empty batch, since it has to
    exchange statistics with the other processes. The caller leaves the added images out of the loss.

    Args:
        images: shape (N, channels, height, width), or (0, 3, 0, 0).
        shape: channels, height and width of the model's input.
        model: the model that gets the batch.
    """
    if len(images) > 1:
        yield images
    elif len(images) == 1:
        yield images.expand(2, -1, -1, -1)
    elif any(isinstance(layer, nn.SyncBatchNorm) for layer in model.modules()):
        yield images.new_empty((0, *shape))
    else:
        learning = [layer for layer in model.modules() if layer.training]
        model.eval()
        try:
            yield images.new_zeros((2, *shape))
        finally:
            for layer in learning:
                layer.training = True
