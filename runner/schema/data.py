"""Rules of the group `data`."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from runner.schema.base import Section
from runner.schema.transforms import Normalize, Size, Transform

# Names of torchvision.datasets that `runner/data/torchvision.py` knows how to read.
TorchvisionDatasetName = Literal[
    "CIFAR10",
    "CIFAR100",
    "DTD",
    "EuroSAT",
    "FGVCAircraft",
    "FashionMNIST",
    "Flowers102",
    "Food101",
    "GTSRB",
    "KMNIST",
    "MNIST",
    "OxfordIIITPet",
    "STL10",
    "SVHN",
]


class _Data(Section):
    root: str | None
    """Folder of the data set; null where the source has a folder of its own (the cache folder)."""
    train: str | None
    """Folder of the training split; null means ROOT/train."""
    val: str | None
    """Folder of the validation split; null means ROOT/val if there is one, else a share of the training split."""
    test: str | None
    """Folder of the test split; null means ROOT/test if there is one."""
    val_fraction: Annotated[float, Field(gt=0, lt=1)]
    """Share of each class's training images that is set aside for validation where there is no validation split."""
    batch_size: Annotated[int, Field(ge=1)]
    """Images per step and process."""
    last_batch: Literal["keep", "drop"]
    """The last incomplete batch of an epoch: keep (a single image left over joins the batch before it) or drop."""
    workers: Literal["auto"] | Annotated[int, Field(ge=0, le=256)]
    """Processes that load images, for each training process; 0 loads in the training process, auto chooses."""
    image_size: Size
    """Side in pixels of the square images that the model sees."""
    normalize: Normalize
    """How pixel values are centred and scaled. Weights of torchvision bring their own."""
    train_transforms: tuple[Transform, ...]
    """What is done to each training image, in this order, drawn anew each epoch."""
    eval_transforms: tuple[Transform, ...]
    """What is done to each image at evaluation and afterwards; packaged with the model."""


class FolderData(_Data):
    """A folder of class folders."""

    source: Literal["folder"]
    """Where images come from; set by the option of the group."""


class DigitsData(_Data):
    """The 1,797 scans of handwritten digits that ship with scikit-learn, 8×8 grey, split 80/20."""

    source: Literal["digits"]
    """Where images come from; set by the option of the group."""


class TorchvisionData(_Data):
    """A data set that torchvision downloads."""

    source: Literal["torchvision"]
    """Where images come from; set by the option of the group."""
    name: TorchvisionDatasetName
    """Name of the data set in torchvision.datasets."""


class SyntheticData(_Data):
    """Random images in memory, for benchmarks."""

    source: Literal["synthetic"]
    """Where images come from; set by the option of the group."""
    num_classes: Annotated[int, Field(ge=2)]
    """Number of classes."""
    num_train: Annotated[int, Field(ge=1)]
    """Number of training images."""
    num_val: Annotated[int, Field(ge=1)]
    """Number of validation images."""


DataConfig = Annotated[FolderData | DigitsData | TorchvisionData | SyntheticData, Field(discriminator="source")]
