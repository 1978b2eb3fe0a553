"""Random resized crop that draws the crop first and then decodes no more than it needs."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torchvision.transforms.v2 import functional

from runner.config.schema.transforms import RandomResizedCrop
from runner.data.images.built import built
from runner.data.images.stored import StoredImage

_REDUCTIONS = (8, 4, 2)
# Pixels of the reduced crop along each side, to those of the result: as Pillow's `reducing_gap=2.0`, which it calls
# nearly indistinguishable from resizing all pixels.
_GAP = 2


class ReducingCrop:
    """`random_resized_crop` of an image that is not decoded yet: the same crops, drawn from the same numbers.

    Of an image that is not reduced the same pixels too. A crop of a reduced one ends on its pixels, so it is smaller by
    up to 7 pixels of the image.
    """

    def __init__(self, transform: RandomResizedCrop, *, reduces: bool) -> None:
        """Without `reduces` all pixels are decoded."""
        self._crop: Any = built(transform)
        self._size = transform.size
        self._reductions = _REDUCTIONS if reduces else ()

    def begin(self, stored: StoredImage) -> Callable[[], Tensor]:
        """Draw the crop.

        Returns:
            Decodes, cuts out and resizes: uint8, shape (3, size, size). Raises InvalidDatasetError if the image is
            damaged.
        """
        # A tensor of this shape without pixels is all that the draw looks at.
        outline = torch.empty((3, stored.height, stored.width), dtype=torch.uint8, device="meta")
        return partial(self._cut, stored, self._crop.make_params([outline]))

    def _cut(self, stored: StoredImage, place: dict[str, int]) -> Tensor:
        reduction = self.reduction(place["height"], place["width"])
        pixels = stored.pixels(reduction)
        if pixels.shape[0] == stored.height:
            reduction = 1
        # A crop that ends between two pixels of the reduced image is made smaller by that part of a pixel.
        top, left = place["top"] // reduction, place["left"] // reduction
        bottom = (place["top"] + place["height"]) // reduction
        right = (place["left"] + place["width"]) // reduction
        # Copied into one piece: resizing is then faster, and its result is laid out as batches are, channels last.
        crop = np.ascontiguousarray(pixels[top:bottom, left:right])
        resized: Tensor = functional.resize(
            torch.from_numpy(crop).permute(2, 0, 1),
            [self._size, self._size],
            interpolation=self._crop.interpolation,
            antialias=True,
        )
        return resized

    def reduction(self, height: int, width: int) -> int:
        """How many times smaller the image may be decoded, for a crop of so many of its pixels."""
        smaller_side = min(height, width)
        return next((factor for factor in self._reductions if smaller_side >= factor * _GAP * self._size), 1)
