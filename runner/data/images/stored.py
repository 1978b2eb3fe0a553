"""An image before its pixels are decoded: its size is known, and fewer pixels may be enough."""

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
        """Decode it.

        Args:
            reduction: 1, 2, 4 or 8: height and width may be this many times smaller (rounded up), where the format
                decodes such an image with less work; others are decoded whole.

        Returns:
            uint8 RGB, shape (height, width, 3), upright.

        Raises:
            InvalidDatasetError: the image is damaged; says which and why.
        """


@dataclass(frozen=True)
class DecodedImage:
    """An image whose pixels are there already."""

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
        """All of them, whatever the reduction; not a copy."""
        del reduction
        return self.decoded
