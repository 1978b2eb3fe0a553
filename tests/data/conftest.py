"""Data sets to read: generated images in class folders, and data configs as conf/ composes them."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from pydantic import TypeAdapter

from runner.config.schema.data import DataConfig

BASE: dict[str, Any] = {
    "root": None,
    "train": None,
    "val": None,
    "test": None,
    "val_fraction": 0.2,
    "batch_size": 4,
    "last_batch": "keep",
    "workers": 0,
    "index_cache": "none",
    "fingerprint": "sampled",
    "jpeg_reduction": "auto",
    "cache": "none",
    "exclude": None,
    "on_bad_image": "error",
    "max_bad_fraction": 0.05,
    "max_pixels": 178_956_970,
    "balance": "none",
    "channels": 3,
    "bit_depth": 8,
    "follow_weights": True,
    "repeats": 1,
    "image_size": 16,
    "progressive_resizing": [],
    "resize": "crop",
    "fill": 0,
    "normalize": {"mean": [0.485, 0.456, 0.406], "std": [0.229, 0.224, 0.225]},
    "train_transforms": [{"name": "random_resized_crop", "size": 16}, {"name": "random_horizontal_flip"}],
    "eval_transforms": [{"name": "resize", "size": 16, "crop_fraction": 0.875}, {"name": "center_crop", "size": 16}],
}
OWN = {
    "folder": {},
    "csv": {"path_column": "path", "label_column": "label", "group_column": None, "delimiter": ","},
    "digits": {
        "train_transforms": [{"name": "resize", "size": 16}],
        "eval_transforms": [{"name": "resize", "size": 16}],
    },
    "torchvision": {"name": "FashionMNIST", "download": True},
    "synthetic": {
        "num_classes": 3,
        "num_train": 40,
        "num_val": 10,
        "train_transforms": [],
        "eval_transforms": [],
    },
}


@pytest.fixture
def data_config() -> Callable[..., DataConfig]:
    """A function (source, **values) → DataConfig."""

    def make(source: str, **values: Any) -> DataConfig:
        composed = {"source": source, **BASE, **OWN[source], **values}
        composed.setdefault("eval_image_size", composed["image_size"])
        return TypeAdapter(DataConfig).validate_json(json.dumps(composed, default=str))

    return make


@pytest.fixture
def write_images() -> Callable[..., Path]:
    """A function (folder, {class: number of images}) → folder, with PNG images of 20 × 24 random pixels."""

    def write(folder: Path, num_images: Mapping[str, int]) -> Path:
        generator = np.random.default_rng(0)
        for name, count in num_images.items():
            (folder / name).mkdir(parents=True)
            for number in range(count):
                pixels = generator.integers(0, 256, size=(20, 24, 3), dtype=np.uint8)
                Image.fromarray(pixels).save(folder / name / f"{number}.png")
        return folder

    return write
