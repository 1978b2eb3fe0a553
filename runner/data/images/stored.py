"""The interface of an image whose size is known and whose pixels are decoded on request, perhaps at reduced size."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np
import numpy.typing as npt

Pixels = npt.NDArray[np.uint8 | np.uint16]
"""Shape (height, width, channels)."""


class InputSection(Protocol):
    """What says how images are read: the group `data`, and the preprocessing of a package."""

    @property
    def channels(self) -> Literal[1, 3, 4]:
        """data.channels."""

    @property
    def bit_depth(self) -> Literal[8, 16]:
        """data.bit_depth."""

    @property
    def resize(self) -> Literal["crop", "letterbox", "squash"]:
        """data.resize."""

    @property
    def fill(self) -> int:
        """data.fill."""


@dataclass(frozen=True, kw_only=True)
class InputFormat:
    """How the pixels of files become those that the model sees."""

    channels: Literal[1, 3, 4] = 3
    bit_depth: Literal[8, 16] = 8
    resize: Literal["crop", "letterbox", "squash"] = "crop"
    fill: int = 0

    @classmethod
    def of(cls, section: InputSection) -> InputFormat:
        """The format that a section describes."""
        return cls(channels=section.channels, bit_depth=section.bit_depth, resize=section.resize, fill=section.fill)

    @property
    def dtype(self) -> np.dtype[np.uint8 | np.uint16]:
        """Type of decoded values."""
        return np.dtype(np.uint8) if self.bit_depth == 8 else np.dtype(np.uint16)

    @property
    def decoded_bytes(self) -> int:
        """Bytes of a decoded pixel: its channels as uint8, or as uint16."""
        return self.channels * self.bit_depth // 8

    @property
    def prepared_bytes(self) -> int:
        """Bytes of a pixel after the transforms: its channels as uint8, or as float32 where there are 16 bits."""
        return self.channels * (1 if self.bit_depth == 8 else 4)

    @property
    def meaning(self) -> str:
        """The channels in their order."""
        return {1: "grey", 3: "RGB", 4: "RGBA"}[self.channels]


RGB = InputFormat()


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
            uint8, or uint16 where the format has 16 bits; shape (height, width, channels), upright.

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


def for_display(pixels: npt.NDArray[np.generic]) -> npt.NDArray[np.uint8]:
    """Pixels as a screen shows them: RGB of 8 bits; a fourth channel is left out.

    Args:
        pixels: uint8, uint16 or, in [0, 1], floating point; shape (height, width, 1, 3 or 4).

    Returns:
        uint8, shape (height, width, 3).
    """
    match pixels.dtype.kind, pixels.dtype.itemsize:
        case "f", _:
            shown = np.rint(pixels.astype(np.float64).clip(0, 1) * 255).astype(np.uint8)
        case _, 2:
            shown = np.rint(pixels.astype(np.float64) * (255 / 65535)).astype(np.uint8)
        case _:
            shown = pixels.astype(np.uint8, copy=False)
    return np.repeat(shown, 3, axis=2) if shown.shape[2] == 1 else shown[:, :, :3]
