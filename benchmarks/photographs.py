"""Class folders of real photographs: crops of the two that scikit-learn ships, as JPEG."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image
from sklearn.datasets import load_sample_images

QUALITY = 90
NUM_CLASSES = 10


def make_photographs(folder: Path, *, num_train: int, num_val: int, width: int, height: int) -> Path:
    """Write train/<class>/ and val/<class>/ with so many images each over all classes.

    Crops of two photographs of 640 × 427 px at random places, from the scale at which they just fit to the full one;
    class c is of photograph c mod 2 in one of five ranges of brightness, so that there is something to learn.
    """
    pictures = [Image.fromarray(pixels) for pixels in load_sample_images().images]
    random = np.random.default_rng(0)
    for split, num_images in (("train", num_train), ("val", num_val)):
        for number in range(num_images):
            label = number % NUM_CLASSES
            place = folder / split / f"class_{label}"
            place.mkdir(parents=True, exist_ok=True)
            image = _crop(pictures[label % 2], random, width, height)
            darker = image.point([round(value * (0.6 + 0.1 * (label // 2))) for value in range(256)] * 3)
            darker.save(place / f"{number:06d}.jpg", quality=QUALITY)
    return folder


def _crop(picture: Image.Image, random: np.random.Generator, width: int, height: int) -> Image.Image:
    largest = min(picture.width / width, picture.height / height)
    scale = random.uniform(min(1.0, largest), largest)
    size = (int(width * scale), int(height * scale))
    left, top = (int(random.integers(0, whole - part + 1)) for whole, part in zip(picture.size, size, strict=True))
    return picture.crop((left, top, left + size[0], top + size[1])).resize((width, height), Image.Resampling.BILINEAR)
