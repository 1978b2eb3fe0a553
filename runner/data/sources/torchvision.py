"""Opens `data=torchvision`: torchvision's data sets, downloaded if they are missing."""

from __future__ import annotations

import http.client
import math
import os
import tarfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, assert_never

import numpy as np
from torchvision import datasets

from runner.base.errors import InvalidDatasetError
from runner.base.files import locked
from runner.base.reasons import first_line, reason_of
from runner.config.schema.data import TorchvisionData, TorchvisionDatasetName
from runner.data.images.decode import to_pixels
from runner.data.images.stored import RGB, DecodedImage, InputFormat, StoredImage
from runner.data.source import Labels, Opened

# Attributes in which torchvision's data sets hold their list of files, some with labels.
_LISTS_OF_FILES = ("_image_files", "_images", "_samples", "samples")
_DOWNLOAD_FAILURES = (
    OSError,  # also urllib.error.URLError and TimeoutError
    RuntimeError,  # torchvision: a checksum does not fit
    EOFError,
    http.client.HTTPException,
    tarfile.TarError,
    zipfile.BadZipFile,
)


@dataclass(frozen=True)
class TorchvisionSource:
    """One split of a torchvision data set."""

    dataset: Any
    """A torchvision.datasets.VisionDataset whose items are pairs of Pillow image and label."""
    labels: Labels
    """Class index of each image, shape (N,)."""
    title: str
    """Name of data set and split, for messages."""
    form: InputFormat = RGB
    """Channels and bits of the pixels."""

    def __len__(self) -> int:
        return len(self.labels)

    def open(self, image: int) -> StoredImage:
        """Read the image with torchvision; see :func:`runner.data.images.decode.to_pixels`."""
        try:
            return DecodedImage(to_pixels(self.dataset[image][0], self.form))
        except MemoryError:
            raise
        # Pillow's decoders raise nearly anything for a damaged file.
        except Exception as error:
            message = f"{self.describe(image)}: can't be read as an image ({first_line(error)})"
            raise InvalidDatasetError(message) from error

    def bytes_once_decoded(self, image: int) -> int | None:
        """None if torchvision holds all images in an array; else the image is decoded."""
        return None if hasattr(self.dataset, "data") else self.open(image).pixels().nbytes

    def file(self, image: int) -> str | None:
        """Its file, if torchvision has a list of files."""
        for name in _LISTS_OF_FILES:
            if (files := getattr(self.dataset, name, None)) is not None:
                entry = files[image]
                return str(entry[0] if isinstance(entry, tuple) else entry)
        return None

    def describe(self, image: int) -> str:
        """Name of data set and split, and number of the image."""
        return f"{self.title}, image {image}"


def open_torchvision(data: TorchvisionData, *, may_fetch: bool = True) -> Opened:
    """Open the official splits of a data set; downloads it into data.root if it is missing and `may_fetch`.

    Raises:
        InvalidDatasetError: it is missing and may not or can't be downloaded, or it can't be read.
    """
    assert data.root is not None, "resolve_paths fills it"
    may_fetch = may_fetch and data.download
    splits = {split: _load(data.name, split, data.root, may_fetch=may_fetch) for split in _official_splits(data.name)}
    sources = {
        split: TorchvisionSource(dataset, _labels(data.name, dataset), f"{data.name} {split}", InputFormat.of(data))
        for split, dataset in splits.items()
    }
    for split, dataset in splits.items():
        # Some data sets number the classes of each split separately.
        if getattr(dataset, "classes", None) != getattr(splits["train"], "classes", None):
            raise InvalidDatasetError(
                f"{data.name} in data.root = {data.root}: its splits {split} and train differ in their classes; "
                "remove it, so that it is downloaded again"
            )
    return Opened(
        classes=_classes(splits["train"], sources["train"].labels),
        train=sources["train"],
        val=sources.get("val"),
        test=sources.get("test"),
    )


def _official_splits(name: TorchvisionDatasetName) -> tuple[str, ...]:
    match name:
        case "DTD" | "FGVCAircraft" | "Flowers102":
            return ("train", "val", "test")
        case "EuroSAT":
            return ("train",)
        case (
            "CIFAR10"
            | "CIFAR100"
            | "FashionMNIST"
            | "Food101"
            | "GTSRB"
            | "KMNIST"
            | "MNIST"
            | "OxfordIIITPet"
            | "STL10"
            | "SVHN"
        ):
            return ("train", "test")
        case _:
            assert_never(name)


def _load(name: TorchvisionDatasetName, split: str, root: str, *, may_fetch: bool) -> Any:  # noqa: ANN401 - untyped
    if not may_fetch:
        # Nothing is downloaded or written, not even a lock.
        try:
            return _construct(name, split, root, download=False)
        except _DOWNLOAD_FAILURES as error:
            raise InvalidDatasetError(
                f"{name} is not in data.root = {root}, and data.download = false (a saved config, and what only reads, "
                f"download nothing); say where it is with data.root=FOLDER, or type data.download=true"
            ) from error
    try:
        with _one_process_at_a_time(Path(root)):
            try:
                return _construct(name, split, root, download=False)
            except RuntimeError:
                # All of torchvision's data sets raise it if their files are missing or damaged.
                return _construct(name, split, root, download=True)
    except _DOWNLOAD_FAILURES as error:
        raise InvalidDatasetError(
            f"{name} is not in data.root = {root} and can't be downloaded: {reason_of(error)}; on a machine with a "
            f"connection run python -c \"import torchvision; torchvision.datasets.{name}('FOLDER', download=True)\" "
            "and copy FOLDER here"
        ) from error


@contextmanager
def _one_process_at_a_time(root: Path) -> Iterator[None]:
    """Processes started together must not unpack into the same folder."""
    try:
        root.mkdir(parents=True, exist_ok=True)
        is_writable = os.access(root, os.W_OK)
    except PermissionError:
        is_writable = False
    if not is_writable:
        # No process can download into it, and reading needs no lock.
        yield
        return
    with locked(root / ".download.lock", wait_seconds=math.inf):
        yield


def _construct(name: TorchvisionDatasetName, split: str, root: str, *, download: bool) -> Any:  # noqa: ANN401
    dataset: Any = getattr(datasets, name)
    match name:
        case "CIFAR10" | "CIFAR100" | "FashionMNIST" | "KMNIST" | "MNIST":
            return dataset(root, train=split == "train", download=download)
        case "DTD" | "FGVCAircraft" | "Flowers102" | "Food101" | "GTSRB" | "STL10" | "SVHN":
            return dataset(root, split=split, download=download)
        case "OxfordIIITPet":
            return dataset(root, split="trainval" if split == "train" else split, download=download)
        case "EuroSAT":
            return dataset(root, download=download)
        case _:
            assert_never(name)


def _labels(name: TorchvisionDatasetName, dataset: Any) -> Labels:  # noqa: ANN401
    """The labels of all images without reading an image; torchvision has no common attribute for them."""
    match name:
        case "CIFAR10" | "CIFAR100" | "EuroSAT" | "FashionMNIST" | "KMNIST" | "MNIST":
            labels = dataset.targets
        case "STL10" | "SVHN":
            labels = dataset.labels
        case "DTD" | "FGVCAircraft" | "Flowers102" | "Food101" | "OxfordIIITPet":
            labels = dataset._labels
        case "GTSRB":
            labels = [label for _, label in dataset._samples]
        case _:
            assert_never(name)
    return np.asarray(labels, dtype=np.int64)


def _classes(dataset: Any, labels: Labels) -> tuple[str, ...]:  # noqa: ANN401
    # GTSRB and SVHN only have numbers.
    names = getattr(dataset, "classes", None) or [str(number) for number in range(int(labels.max()) + 1)]
    return tuple(names)
