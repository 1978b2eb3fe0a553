"""Writes the data set of `data=digits`, scikit-learn's digits, as a folder of class folders."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
from PIL import Image

from runner.base.errors import InvalidDatasetError, OutputError
from runner.base.files import publish
from runner.base.reasons import reason_of
from runner.data.held_out import stratified_split

# The split does not depend on the seed of the experiment, so that results can be compared.
_SPLIT_SEED = 0
_VAL_FRACTION = 0.2


def ensure_digits(root: str, *, may_write: bool = True) -> None:
    """Write ROOT/train/<0-9>/*.png and ROOT/val/<0-9>/*.png unless they exist.

    8×8 grey PNG, 8 bits, from sklearn.datasets.load_digits (the test part of the UCI Optical Recognition of
    Handwritten Digits data set: 1,797 images, values 0 … 16 scaled to 0 … 255); 80/20, stratified by class. The folder
    is written under a temporary name and renamed, so it is complete or missing even if several processes start at once
    or one is killed.

    Raises:
        OutputError: the folder can't be written.
        InvalidDatasetError: ROOT holds something else, or nothing, and may not be written.
    """
    target = Path(root)
    if (target / "train").is_dir():
        return
    if not may_write:
        raise InvalidDatasetError(
            f"data.root = {root}: the digits are not there, and what only reads a run does not write them where the "
            "run's config says; type data=digits to have them in the cache folder"
        )
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        # Within a temporary folder, because that folder itself is not readable for other users, and ROOT must be.
        with tempfile.TemporaryDirectory(prefix=f".{target.name}-", dir=target.parent) as temporary:
            written = Path(temporary, target.name)
            _write_digits(written)
            _move_into_place(written, target)
    except OSError as error:
        raise OutputError(
            f"the digits can't be written to {target}: {reason_of(error)}; "
            "choose another folder with RUNNER_CACHE=FOLDER or data.root=FOLDER"
        ) from error


def _write_digits(folder: Path) -> None:
    from sklearn.datasets import load_digits  # noqa: PLC0415 - slow to import, and needed once in a lifetime

    digits = load_digits()
    labels = digits.target.astype(np.int64)
    pixels = np.rint(digits.images * (255 / 16)).astype(np.uint8)
    classes = [str(name) for name in digits.target_names]
    for split, ids in zip(("train", "val"), stratified_split(labels, _VAL_FRACTION, _SPLIT_SEED, classes), strict=True):
        for name in classes:
            (folder / split / name).mkdir(parents=True)
        for number in ids.tolist():
            file = folder / split / classes[labels[number]] / f"{number:04d}.png"
            Image.fromarray(pixels[number]).save(file)


def _move_into_place(written: Path, target: Path) -> None:
    try:
        publish(written, target)
    except OutputError as error:
        if (target / "train").is_dir():
            return  # another process was first, and wrote the same
        if not target.exists():
            raise
        raise InvalidDatasetError(
            f"data.root = {target}: holds something else; data=digits needs a folder of its own, empty or not there yet"
        ) from error
