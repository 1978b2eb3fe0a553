"""The packaged model: the best weights, and model.json with all that it takes to use them."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

from pydantic import Field, ValidationError, field_validator, model_validator

from runner.base.errors import CheckpointError
from runner.base.files import (
    named_write_errors,
    replace,
    sha256_of,
    sync_file,
    sync_folder,
    temporary_beside,
    write_json,
)
from runner.base.untrusted import UntrustedFileError, read_json, unreadable
from runner.base.user_paths import refuse_outside_links
from runner.config.schema.base import ConfigSection
from runner.config.schema.data import DataConfig
from runner.config.schema.model import ModelConfig
from runner.config.schema.transforms import Grey, ImageSize, Normalize, Transform
from runner.run.contents import first_problem
from runner.run.image_profile import ImageProfile

PACKAGE_FORMAT = 3
WEIGHTS_FILE = "model.safetensors"
CARD_FILE = "model.json"


class Preprocessing(ConfigSection):
    """What happens to an image before the model sees it."""

    channels: Literal[1, 3, 4] = 3
    bit_depth: Literal[8, 16] = 8
    image_size: ImageSize
    resize: Literal["crop", "letterbox", "squash"] = "crop"
    fill: Grey = 0
    transforms: tuple[Transform, ...]
    """Applied in this order to the image: uint8, or with 16 bits float32 in [0, 1]."""
    normalize: Normalize

    @model_validator(mode="after")
    def _has_values_for_each_channel(self) -> Preprocessing:
        for name in ("mean", "std"):
            if len(getattr(self.normalize, name)) != self.channels:
                raise ValueError(f"normalize.{name} must have {self.channels} values, one for each channel")
        return self


def preprocessing_of(data: DataConfig) -> Preprocessing:
    """The preprocessing that an effective data config describes."""
    return Preprocessing(
        channels=data.channels,
        bit_depth=data.bit_depth,
        image_size=data.eval_image_size,
        resize=data.resize,
        fill=data.fill,
        transforms=data.eval_transforms,
        normalize=data.normalize,
    )


class ModelCard(ConfigSection):
    """The content of model.json."""

    format: Literal[1, 2, 3]
    """Version of this file's layout. Format 1 had neither metrics nor origin, format 2 no reference."""
    architecture: ModelConfig
    """How to build the module; its `weights` name the pretrained weights that training started from."""
    num_classes: Annotated[int, Field(ge=1)]
    classes: tuple[str, ...]
    """Class names in index order."""
    preprocessing: Preprocessing
    weights_sha256: str
    weights_kind: Literal["raw", "ema"]
    """Whether the weights are those that were trained or their moving average."""
    best: dict[str, Any]
    """The metric by which these weights were chosen, its value and its epoch."""
    metrics: dict[str, Any] = Field(default_factory=dict)
    """Metrics by split; empty until the weights are evaluated."""
    origin: dict[str, Any] = Field(default_factory=dict)
    """The run that trained them: folder, start, git commit, data, versions."""
    reference: ImageProfile | None = None
    """What the validation images looked like, to tell how far others have drifted; None until they are evaluated."""

    @model_validator(mode="after")
    def _of_as_many_classes(self) -> ModelCard:
        if len(self.classes) != self.num_classes or len(set(self.classes)) != self.num_classes:
            raise ValueError(
                f"num_classes = {self.num_classes}, but classes are {len(set(self.classes))} different names"
            )
        if self.reference is not None and len(self.reference.predicted_class) != self.num_classes:
            raise ValueError(
                f"num_classes = {self.num_classes}, but the reference counts {len(self.reference.predicted_class)}"
            )
        return self

    @field_validator("architecture", mode="before")
    @classmethod
    def _with_newer_keys(cls, architecture: object) -> object:
        """Packages from before a key have the value that does what was done then."""
        if not isinstance(architecture, dict):
            return architecture
        of_family = {"blur_pool": False} if architecture.get("family") == "resnet" else {}
        return {"checkpoint_activations": False, "average_flips": False, **of_family, **architecture}

    @field_validator("best")
    @classmethod
    def _says_which_epoch(cls, best: dict[str, Any]) -> dict[str, Any]:
        if type(best.get("epoch")) is not int:
            raise ValueError("does not say which epoch it was")
        return best


@dataclass(frozen=True, kw_only=True)
class Package:
    """A package that was read and verified."""

    card: ModelCard
    weights_file: Path

    @property
    def reference(self) -> ImageProfile:
        """What the validation images looked like.

        Raises:
            CheckpointError: the package is from before there was one.
        """
        if self.card.reference is None:
            raise CheckpointError(
                f"{self.weights_file.parent} has no reference, which says what the validation images looked like: an "
                "older runner packaged it. `evaluate run=DIR` adds it to the package of a run; or train again"
            )
        return self.card.reference


def write_package(folder: Path, weights: Path, card: dict[str, Any]) -> None:
    """Write `model/` atomically; an older package is replaced only once the new one is complete.

    Args:
        folder: the folder to create.
        weights: the safetensors file of a verified checkpoint; copied byte by byte.
        card: the fields of :class:`ModelCard` except format and digest.

    Raises:
        OutputError: when it can't be written.
    """
    temporary = temporary_beside(folder)
    with named_write_errors(folder):
        try:
            temporary.mkdir()
            shutil.copyfile(weights, temporary / WEIGHTS_FILE)
            sync_file(temporary / WEIGHTS_FILE)
            digest = sha256_of(temporary / WEIGHTS_FILE)
            checked = ModelCard.model_validate_json(
                json.dumps({"format": PACKAGE_FORMAT, "weights_sha256": digest, **card})
            )
            write_json(temporary / CARD_FILE, checked.model_dump(mode="json"))
            sync_folder(temporary)
            replace(temporary, folder)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)


def add_metrics(folder: Path, metrics: dict[str, Any], profile: dict[str, Any]) -> None:
    """Write into model.json the metrics of each split, and the profile of the validation images as the reference.

    Raises:
        OutputError: when it can't be written.
    """
    _change_card(folder, {"metrics": metrics, "reference": profile})


def lacks_reference(folder: Path, weights_sha256: str) -> bool:
    """Whether a package of these weights has no reference, as those from before there were any.

    Raises:
        CheckpointError: model.json is damaged.
    """
    if not (folder / CARD_FILE).is_file():
        return False
    card = _read_card(folder / CARD_FILE, folder)
    return card.reference is None and card.weights_sha256 == weights_sha256


def add_reference(folder: Path, profile: dict[str, Any]) -> None:
    """Write the profile of the validation images into model.json as the reference.

    Raises:
        OutputError: when it can't be written.
    """
    _change_card(folder, {"reference": profile})


def _change_card(folder: Path, entries: dict[str, Any]) -> None:
    card = _read_card(folder / CARD_FILE, folder).model_dump(mode="json")
    changed = ModelCard.model_validate_json(json.dumps({**card, "format": PACKAGE_FORMAT, **entries}))
    write_json(folder / CARD_FILE, changed.model_dump(mode="json"))


def read_package(path: Path) -> Package:
    """Read a package and compare its weights with their digest.

    Args:
        path: a run folder, or the package folder itself.

    Raises:
        CheckpointError: when there is no package, it has a newer format, or it is damaged.
    """
    refuse_outside_links(path)
    folder = path / "model" if (path / "model").is_dir() else path
    card, weights_file = _read_card(folder / CARD_FILE, path), folder / WEIGHTS_FILE
    if not weights_file.is_file() or sha256_of(weights_file) != card.weights_sha256:
        raise CheckpointError(f"{weights_file} is missing or damaged: it differs from what was written (SHA-256)")
    return Package(card=card, weights_file=weights_file)


def _read_card(card_file: Path, path: Path) -> ModelCard:
    try:
        values = read_json(card_file)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise CheckpointError(
            f"{path} holds no packaged model ({CARD_FILE}); a run has one once its training is completed"
        ) from error
    except (OSError, UntrustedFileError) as error:
        raise CheckpointError(unreadable(card_file, error)) from error
    version = values.get("format") if isinstance(values, dict) else None
    if type(version) is int and version > PACKAGE_FORMAT:
        raise CheckpointError(
            f"{card_file} has format {version}, of a newer runner; this one reads up to {PACKAGE_FORMAT}: update it"
        )
    if type(version) is not int or version not in get_args(ModelCard.model_fields["format"].annotation):
        raise CheckpointError(f"{card_file} has format {str(version)[:20]!r}; this runner reads up to {PACKAGE_FORMAT}")
    try:
        return ModelCard.model_validate_json(json.dumps(values))
    except ValidationError as error:
        raise CheckpointError(f"{card_file} is damaged: {first_problem(error)}") from error
