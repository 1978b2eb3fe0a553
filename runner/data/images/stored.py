"""The interface of an image whose size is known and whose pixels are decoded on request, perhaps at reduced size."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

Pixels = npt.NDArray[np.uint8]


class StoredImage(Protocol):
    """An image that can be decoded."""

    @property
    def height(self) -> int:
        """In pixels, upright."""

    @property
    def width(self) -> int:
        """In pixels, upright."""

    def pixels(self, reduction: int = 1) -> Pixels:
        """Decode the image.

        Args:
            reduction: 1, 2, 4 or 8: height and width may be this many times smaller (rounded up), if the format can be
                decoded faster at that size; others are decoded at full size.

        Returns:
            uint8 RGB, shape (height, width, 3), upright.

        Raises:
            InvalidDatasetError: the image is damaged; names the image and the reason.
        """


@dataclass(frozen=True)
class DecodedImage:
    """An image whose pixels are decoded already."""

    decoded: Pixels

    @property
    def height(self) -> int:
        """In pixels."""
        return int(self.decoded.shape[0])

    @property
    def width(self) -> int:
        """In pixels."""
        return int(self.decoded.shape[1])

    def pixels(self, reduction: int = 1) -> Pixels:
        """All pixels, whatever the reduction; not a copy."""
        del reduction
        return self.decoded
