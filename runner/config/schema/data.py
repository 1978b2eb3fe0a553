"""Rules of the group `data`."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from runner.base.errors import ConfigError, Problem
from runner.config.schema.base import (
    AHEAD,
    AS_TYPED,
    FIRST_LAYER,
    IMAGES,
    LAST_BITS,
    NONE,
    PREPROCESSING,
    RESULT,
    START,
    TRAINING,
    ConfigSection,
    LocalPath,
)
from runner.config.schema.transforms import Grey, ImageSize, Normalize, Transform

# The classes of torchvision.datasets that `runner/data/sources/torchvision.py` reads.
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
# Pillow's own limit: twice its Image.MAX_IMAGE_PIXELS.
MOST_PIXELS = 178_956_970
# With one image per process, BatchNorm can't learn.
SMALLEST_BATCH_SIZE = 2
FingerprintExtent = Literal["names", "sampled", "full"]


class SmallerImages(ConfigSection):
    """An entry of `data.progressive_resizing`."""

    epochs: Annotated[int, Field(ge=1)]
    """How many epochs have this size."""
    image_size: ImageSize
    """In pixels, at most data.image_size: the side of a square, or [height, width]."""


class _Data(ConfigSection):
    root: Annotated[LocalPath | None, IMAGES, AS_TYPED]
    """Folder of the data set; null where the source has a folder of its own (the cache folder)."""
    train: Annotated[LocalPath | None, IMAGES, AS_TYPED]
    """Folder of the training split, or its CSV file; null means ROOT/train."""
    val: Annotated[LocalPath | None, IMAGES, AS_TYPED]
    """Folder or CSV file of the validation split; null means ROOT/val if there is one, else a share of the training
    split."""
    test: Annotated[LocalPath | None, IMAGES, AS_TYPED]
    """Folder or CSV file of the test split; null means ROOT/test if there is one."""
    val_fraction: Annotated[float, Field(gt=0, lt=1), RESULT]
    """Share of each class's training images that is set aside for validation where there is no validation split."""
    batch_size: Annotated[Literal["auto"] | Annotated[int, Field(ge=1)], TRAINING]
    """Images per step and process; auto: before the run begins, short trainings find the largest power of two that fits
    into memory and leaves 20 steps per epoch, and the run's config.yaml has it. The learning rate stays as it is."""
    last_batch: Annotated[Literal["keep", "drop"], TRAINING]
    """The last incomplete batch of an epoch: keep (a single image left over joins the batch before it) or drop."""
    workers: Annotated[Literal["auto"] | Annotated[int, Field(ge=0, le=256)], NONE]
    """Processes that load images, for each training process; 0 loads in the training process, between its steps; auto
    chooses."""
    index_cache: Annotated[Literal["auto", "none"], NONE]
    """The list of files of a large folder: auto keeps it in the cache folder as long as no folder in it changes; none
    lists them at each start."""
    fingerprint: Annotated[FingerprintExtent, NONE]
    """What a run remembers of its images, so that `resume` refuses others and `evaluate` warns. names: names, labels
    and order; sampled: also the size of each file and the first MiB of 1,024 files of each split (about 6 s for 1.28
    million files on a local disk); full: also all bytes of all files. Images without files are compared by pixels."""
    jpeg_reduction: Annotated[Literal["auto", "none"], LAST_BITS]
    """Where data.train_transforms begin with random_resized_crop: auto decodes a JPEG at 1/2, 1/4 or 1/8 of its size as
    long as the crop still has twice as many pixels along each side as it is resized to; none decodes all pixels. At
    evaluation all pixels are decoded, and in training of sets that data.cache is to keep."""
    cache: Annotated[Literal["auto", "none", "memory", "device"], LAST_BITS]
    """Images that are kept once they are decoded. memory: in memory that all processes of a machine share; all pixels
    are decoded, as with jpeg_reduction none. device: in each process's GPU (or its memory, without one), where crops
    and flips are drawn for a whole batch at once: for small images; it takes train_transforms of fixed transforms, then
    random_crop and flips. Both keep the images of evaluation as they are after their transforms. auto keeps small sets,
    where it changes no pixel of a whole decoding: the images of evaluation, and those of training where nothing about
    them is random (on the device), up to 256 MiB each; on Linux other files of training, up to 1 GiB, in memory as far
    as it is free."""
    exclude: Annotated[LocalPath | None, IMAGES, AS_TYPED]
    """A list of images to leave out of all splits: CSV with a column `path`, as `dataset check` writes it, or text with
    one path per line; absolute, or relative to data.root (where that is null, to the folder of the list)."""
    on_bad_image: Annotated[Literal["error", "skip"], AHEAD]
    """An image that can't be decoded: ends the run, or is left out, named in the log and counted."""
    max_bad_fraction: Annotated[float, Field(ge=0, lt=1), AHEAD]
    """With skip, the largest share of a split (per epoch) that may be bad; more ends the run."""
    max_pixels: Annotated[int, Field(ge=1, le=MOST_PIXELS), RESULT]
    """Largest width × height of an image file; larger ones are bad images, found by their header before anything is
    decoded. Decoding takes up to about 12 bytes per pixel."""
    balance: Annotated[Literal["none", "loss_weights", "sampler"], TRAINING]
    """Against classes of different sizes: weigh each image's loss by n / (K · n_c), for n images in K classes, n_c of
    them in its own; or draw images with these weights, with replacement, n per epoch."""
    channels: Annotated[Literal[1, 3, 4], FIRST_LAYER]
    """Channels of the images that the model sees: 1 (grey), 3 (RGB) or 4 (RGBA, the fourth being 255 where a file has
    none). The model's first layer is adapted; its pretrained weights are summed for 1 and repeated for 4."""
    bit_depth: Annotated[Literal[8, 16], PREPROCESSING]
    """Bits of a decoded pixel value. With 16, which takes data.channels=1, 16-bit grey files keep their depth; with 8
    they are scaled to 0 … 255."""
    repeats: Annotated[int, Field(ge=1, le=16), TRAINING]
    """How often an image comes in an epoch that it comes in at all, each time augmented anew, data.batch_size images
    apart, which is on another process, or in another of the accumulate_steps; an epoch has as many images as ever, and
    so a share of 1 / repeats of all (repeated augmentation, Hoffer et al. 2020, arXiv:1901.09335; usually 3)."""
    image_size: Annotated[ImageSize, PREPROCESSING]
    """Size in pixels of the images that the model sees in training: the side of a square, or [height, width]."""
    progressive_resizing: Annotated[tuple[SmallerImages, ...], TRAINING]
    """Smaller images at the start of the training, one entry after the other (progressive resizing, Howard 2018): each
    size within data.train_transforms is scaled as entry.image_size is to data.image_size."""
    eval_image_size: Annotated[ImageSize, PREPROCESSING]
    """The same at evaluation and afterwards, by default that of training. After random crops, which enlarge what they
    show, a larger size here raises the accuracy (Touvron et al. 2019, arXiv:1906.06423)."""
    resize: Annotated[Literal["crop", "letterbox", "squash"], PREPROCESSING]
    """What each transform `resize` does with images of another aspect ratio. crop: keeps it and covers the size, for a
    crop that follows; letterbox: keeps it, shows the whole image and fills the rest; squash: does not keep it."""
    fill: Annotated[Grey, PREPROCESSING]
    """The value of all channels beside a letterboxed image, 0 (black) to 255 (white)."""
    follow_weights: Annotated[bool, PREPROCESSING]
    """Whether pretrained weights that torchvision or timm publish bring their own eval_transforms, scaled to
    eval_image_size, and their own mean and std for 3 channels, which the log shows. Without: those of this group."""
    normalize: Annotated[Normalize, PREPROCESSING]
    """How pixel values are centred and scaled; `dataset check statistics=true` computes it. Published weights
    bring their own for 3 channels, see follow_weights."""
    train_transforms: Annotated[tuple[Transform, ...], TRAINING]
    """What is done to each training image, in this order, drawn anew each epoch."""
    eval_transforms: Annotated[tuple[Transform, ...], PREPROCESSING]
    """What is done to each image at evaluation and afterwards; packaged with the model."""

    @property
    def fixed_batch_size(self) -> int:
        """The batch size where it is a number.

        Raises:
            ConfigError: it is auto; only a training that begins on one machine finds one.
        """
        if self.batch_size == "auto":
            message = "is found when a run begins on one machine, not here"
            hint = "give the number in the config.yaml of a run that found it, or one of your own"
            raise ConfigError(
                [Problem(key="data.batch_size", value="auto", has_value=True, message=message, hint=hint)]
            )
        return self.batch_size

    @property
    def smallest_batch_size(self) -> int:
        """The batch size, or with auto the smallest one that it can find."""
        return SMALLEST_BATCH_SIZE if self.batch_size == "auto" else self.batch_size


class CsvData(_Data):
    """Images that CSV files list, one file per split, with a header line."""

    source: Annotated[Literal["csv"], START]
    """Where images come from; set by the option of the group."""
    path_column: Annotated[str, Field(min_length=1), RESULT]
    """Column of the paths: absolute, or relative to data.root (where that is null, to the folder of the CSV file)."""
    label_column: Annotated[str, Field(min_length=1), RESULT]
    """Column of the class name."""
    group_column: Annotated[Annotated[str, Field(min_length=1)] | None, RESULT]
    """Column of a group, such as a patient: where validation is made from training, groups stay together."""
    delimiter: Annotated[str, Field(min_length=1, max_length=1), RESULT]
    """The character between columns."""


class FolderData(_Data):
    """A folder of class folders."""

    source: Annotated[Literal["folder"], START]
    """Where images come from; set by the option of the group."""


class DigitsData(_Data):
    """The 1,797 scans of handwritten digits that ship with scikit-learn, 8×8 grey, split 80/20."""

    source: Annotated[Literal["digits"], START]
    """Where images come from; set by the option of the group."""


class TorchvisionData(_Data):
    """A data set that torchvision downloads."""

    source: Annotated[Literal["torchvision"], START]
    """Where images come from; set by the option of the group."""
    name: Annotated[TorchvisionDatasetName, RESULT]
    """Name of the data set in torchvision.datasets."""
    download: Annotated[bool, NONE]
    """Download the data set where data.root has it not; a saved config (resume, runs repeat) downloads only where this
    is typed again."""


class SyntheticData(_Data):
    """Random images in memory, for benchmarks."""

    source: Annotated[Literal["synthetic"], START]
    """Where images come from; set by the option of the group."""
    num_classes: Annotated[int, Field(ge=2, le=1_000_000), RESULT]
    """Number of classes."""
    num_train: Annotated[int, Field(ge=1, le=100_000_000), RESULT]
    """Number of training images."""
    num_val: Annotated[int, Field(ge=1, le=100_000_000), RESULT]
    """Number of validation images."""


DataConfig = Annotated[
    FolderData | CsvData | DigitsData | TorchvisionData | SyntheticData, Field(discriminator="source")
]
