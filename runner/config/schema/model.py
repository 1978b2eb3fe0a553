"""Rules of the group `model`."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from runner.config.schema.base import AS_TYPED, LAST_BITS, ConfigSection, LocalPath
from runner.config.schema.transforms.fixed import ImageSize

ResNetName = Literal[
    "resnet18",
    "resnet34",
    "resnet50",
    "resnet101",
    "resnet152",
    "resnext50_32x4d",
    "resnext101_32x8d",
    "resnext101_64x4d",
    "wide_resnet50_2",
    "wide_resnet101_2",
]
DenseNetName = Literal["densenet121", "densenet161", "densenet169", "densenet201"]

# torchvision's weights of these models; a test compares this table with torchvision's own.
WEIGHTS_OF: dict[str, tuple[str, ...]] = {
    "resnet18": ("IMAGENET1K_V1",),
    "resnet34": ("IMAGENET1K_V1",),
    "resnet50": ("IMAGENET1K_V1", "IMAGENET1K_V2"),
    "resnet101": ("IMAGENET1K_V1", "IMAGENET1K_V2"),
    "resnet152": ("IMAGENET1K_V1", "IMAGENET1K_V2"),
    "resnext50_32x4d": ("IMAGENET1K_V1", "IMAGENET1K_V2"),
    "resnext101_32x8d": ("IMAGENET1K_V1", "IMAGENET1K_V2"),
    "resnext101_64x4d": ("IMAGENET1K_V1",),
    "wide_resnet50_2": ("IMAGENET1K_V1", "IMAGENET1K_V2"),
    "wide_resnet101_2": ("IMAGENET1K_V1", "IMAGENET1K_V2"),
    "densenet121": ("IMAGENET1K_V1",),
    "densenet161": ("IMAGENET1K_V1",),
    "densenet169": ("IMAGENET1K_V1",),
    "densenet201": ("IMAGENET1K_V1",),
}
WEIGHTS_FILE_SUFFIXES = (".safetensors", ".pth", ".pt")


def is_weights_file(weights: str) -> bool:
    """Whether `model.weights` is a file rather than a name of published weights."""
    return weights.endswith(WEIGHTS_FILE_SUFFIXES) or "/" in weights or "\\" in weights


class _Model(ConfigSection):
    weights: Annotated[LocalPath | None, AS_TYPED]
    """Where training starts: null (from scratch), one of torchvision's weights names (IMAGENET1K_V1, DEFAULT or
    ResNet18_Weights.IMAGENET1K_V1), with model=timm `pretrained`, or a local .safetensors, .pth or .pt file. A
    pretrained head is replaced."""
    average_flips: bool
    """At evaluation and afterwards, give the mean of the scores of each image and of its mirror image: twice the time,
    often a little more accurate. Not for images with letters or sides."""
    checkpoint_activations: Annotated[bool, LAST_BITS]
    """Compute the activations within blocks again in the backward pass instead of keeping them: less memory, about a
    third more time (Chen et al. 2016)."""


class ResNetConfig(_Model):
    """A ResNet, ResNeXt or wide ResNet (He et al. 2015; Xie et al. 2016; Zagoruyko & Komodakis 2016)."""

    family: Literal["resnet"]
    """Which kind of model `name` belongs to; set by the option of the group."""
    name: ResNetName
    """The architecture, under torchvision's name."""
    stem: Literal["imagenet", "small"]
    """First layers: imagenet (7×7 stride 2, max-pool) or small (3×3 stride 1, no max-pool; for images ≤ 64 px)."""
    zero_init_residual: bool
    """Start each residual branch at zero (Goyal et al. 2017); only acts on what starts from scratch."""
    blur_pool: bool
    """Blur before each convolution of stride 2, so that a shifted image gives similar scores (BlurPool, Zhang 2019,
    arXiv:1904.11486)."""


class DenseNetConfig(_Model):
    """A DenseNet (Huang et al. 2017)."""

    family: Literal["densenet"]
    """Which kind of model `name` belongs to; set by the option of the group."""
    name: DenseNetName
    """The architecture, under torchvision's name."""
    stem: Literal["imagenet", "small"]
    """First layers: imagenet (7×7 stride 2, max-pool) or small (3×3 stride 1, no max-pool; for images ≤ 64 px)."""
    memory_efficient: bool
    """Recompute the concatenations in the backward pass: less memory, slower."""


class TorchvisionConfig(_Model):
    """Any other classifier of torchvision."""

    family: Literal["torchvision"]
    """Which kind of model `name` belongs to; set by the option of the group."""
    name: str
    """The name under which torchvision lists the classifier, such as efficientnet_b0."""


class TimmConfig(_Model):
    """A model of timm (Wightman 2019). Keys that are null are left to the architecture."""

    family: Literal["timm"]
    """Which kind of model `name` belongs to; set by the option of the group."""
    name: str
    """The name under which timm lists the model, with a tag for certain weights: convnext_tiny, resnet50.a1_in1k."""
    drop_rate: Annotated[float, Field(ge=0, lt=1)] | None
    """Probability of dropout before the head, where the architecture has it; null: the architecture's own."""
    drop_path_rate: Annotated[float, Field(ge=0, lt=1)] | None
    """Probability that an image skips the last residual block, growing over the blocks from 0 (stochastic depth, Huang
    et al. 2016), where the architecture has it; null: the architecture's own."""
    global_pool: str | None
    """How the features of an image become one vector, such as avg, max or token; null: the architecture's own."""
    img_size: ImageSize | None
    """Size in px of the images that a transformer of a fixed size is built for, such as data.image_size: the side of a
    square, or [height, width]; null: the architecture's own."""


class CustomConfig(_Model):
    """The user's own model, offered by an installed package under the entry point group `runner.models`."""

    family: Literal["custom"]
    """Which kind of model `name` belongs to; set by the option of the group."""
    name: str
    """The name of the entry point: a function (num_classes, **arguments) that returns a torch.nn.Module."""
    arguments: dict[str, Any]
    """Keyword arguments handed to that function."""


ModelConfig = Annotated[
    ResNetConfig | DenseNetConfig | TorchvisionConfig | TimmConfig | CustomConfig, Field(discriminator="family")
]
