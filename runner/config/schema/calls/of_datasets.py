"""Rules of the keys of `dataset …`."""

from __future__ import annotations

import re
from typing import Annotated, Literal
from urllib.parse import urlsplit

from pydantic import Field, ValidationInfo, field_validator

from runner.base.user_paths import refuse_address, scheme_of
from runner.config.schema.base import AS_TYPED, ConfigSection, LocalPath


class _ListCall(ConfigSection):
    """A command that reads lists of images."""

    input: Annotated[LocalPath, Field(min_length=1), AS_TYPED]
    """The images to read; they are never changed."""
    output: Annotated[LocalPath, Field(min_length=1), AS_TYPED]
    """Folder to make; it appears only when it is complete, and must not exist or be empty."""
    root: Annotated[LocalPath | None, AS_TYPED]
    """Folder from which relative paths in a CSV list or COCO file start; null means the folder of that file."""
    path_column: Annotated[str, Field(min_length=1), AS_TYPED]
    """Column of a CSV list with the path of the image."""
    label_column: Annotated[str, Field(min_length=1), AS_TYPED]
    """Column of a CSV list with the name of the class."""
    delimiter: Annotated[str, AS_TYPED]
    """The character between the columns of a CSV list; \\t for a tab."""
    encoding: Annotated[str, AS_TYPED]
    """Encoding of a CSV list, and of file names in archives that do not say which; one of Python's names."""

    @field_validator("delimiter")
    @classmethod
    def _one_character(cls, delimiter: str) -> str:
        character = "\t" if delimiter == r"\t" else delimiter
        if len(character) != 1 or character in '"\r\n':
            raise ValueError(r"must be one character, such as ; or \t for a tab")
        return character

    @field_validator("encoding")
    @classmethod
    def _known(cls, encoding: str) -> str:
        try:
            "".encode(encoding)  # accepts text encodings only; codecs.lookup also knows hex and the like
        except LookupError:
            raise ValueError("no such encoding; usual ones are utf-8, cp1252, gbk, shift_jis") from None
        return encoding


class DatasetImportCall(_ListCall):
    """`python -m runner dataset import input=PATH output=DIR`."""

    input: Annotated[str, Field(min_length=1), AS_TYPED]
    """The images to read: a path, or the https:// address of a zip or tar archive to download."""
    format: Literal["auto", "folder", "zip", "tar", "csv", "coco"]
    """What the input is; auto looks at its content, then at its name. tar may be compressed by gzip, bzip2 or xz."""
    class_from: Literal["top", "parent"]
    """Which folder of a tree names the class: the topmost one below the root or split, or the one around the image."""
    split_column: Annotated[str | None, AS_TYPED]
    """Column of a CSV list with train, val or test; null: the list knows no splits."""
    multiple_labels: Literal["error", "largest", "first", "skip"]
    """A COCO image with annotations of several categories: refuse, take that of the largest area or of the first
    annotation, or leave the image out."""
    workers: Literal["auto"] | Annotated[int, Field(ge=0, le=256)]
    """Processes that check whether images can be decoded; auto: one per core; 0: none beside this one."""
    max_expansion: Annotated[float, Field(ge=1)]
    """Largest ratio of an archive's unpacked to its packed size; images hardly shrink, decompression bombs do."""
    max_unpacked_gib: Annotated[float, Field(gt=0)]
    """GiB that an archive may hold in all."""
    sha256: Annotated[str | None, AS_TYPED]
    """SHA-256 of the input file, in hexadecimal; another file is refused. null: not checked; http:// requires it."""
    max_download_gib: Annotated[float, Field(gt=0)]
    """Largest download in GiB."""

    @field_validator("input")
    @classmethod
    def _path_or_archive(cls, text: str) -> str:
        if scheme_of(text) not in ("http", "https"):
            return refuse_address(text)
        try:
            parts = urlsplit(text.strip())
            is_address = bool(parts.hostname) and parts.port != 0
        except ValueError:  # a port that is no number, half an IPv6 address
            is_address = False
        if not is_address:
            raise ValueError("is no address; expected https://HOST/PATH")
        if parts.scheme == "http" and parts.username is not None:
            raise ValueError("would send the password unencrypted; type the https:// address")
        return text

    @field_validator("format")
    @classmethod
    def _archive_of_address(cls, kind: str, info: ValidationInfo) -> str:
        if kind not in ("auto", "zip", "tar") and scheme_of(info.data.get("input", "")):
            raise ValueError("at an address, only zip and tar archives are read; download it, and give the local path")
        return kind

    @field_validator("sha256")
    @classmethod
    def _digest(cls, digest: str | None, info: ValidationInfo) -> str | None:
        if digest is None and scheme_of(info.data.get("input", "")) == "http":
            raise ValueError(
                "over http:// others on the network can replace the file; type the https:// address, or the "
                "sha256=… that its publisher names"
            )
        if digest is not None and not re.fullmatch(r"[0-9a-fA-F]{64}", digest):
            raise ValueError("must be 64 hexadecimal digits, such as sha256sum prints them")
        return digest and digest.lower()


class DatasetSplitCall(_ListCall):
    """`python -m runner dataset split input=DIR|LIST.csv output=DIR`."""

    fraction: Annotated[float, Field(gt=0, lt=1)]
    """Share of each class's images for training; what test_fraction leaves of the rest is for validation."""
    test_fraction: Annotated[float, Field(ge=0, lt=1)]
    """Share of each class's images for a test split; 0: none."""
    seed: Annotated[int, Field(ge=0, lt=2**63)]
    """Decides which images are drawn, as the seed of an experiment does for data.val_fraction."""
    mode: Literal["manifest", "copy", "hardlink", "symlink"]
    """manifest: lists only, images stay where they are; else also class folders with copies of or links to them."""
    group_column: Annotated[str | None, AS_TYPED]
    """Column of a CSV list, such as the patient; images of the same group stay in the same split."""

    @field_validator("test_fraction")
    @classmethod
    def _leaves_validation(cls, test_fraction: float, info: ValidationInfo) -> float:
        if test_fraction + info.data.get("fraction", 0) > 1 - 1e-9:
            raise ValueError(
                "fraction and test_fraction must leave something for validation: their sum must be below 1"
            )
        return test_fraction


class DatasetCheckCall(ConfigSection):
    """`python -m runner dataset check [overrides]`."""

    strict: bool
    """End with exit code 2 when something is found."""
    statistics: bool
    """Also compute mean and standard deviation of each channel over the training images, after data.eval_transforms,
    and print them as data.normalize."""
    output: Annotated[LocalPath | None, AS_TYPED]
    """Folder for check.json and quarantine.csv; null makes a new one under OUTPUT_DIR/checks."""


class DatasetShowCall(ConfigSection):
    """`python -m runner dataset show output=FILE.png [overrides]`."""

    output: Annotated[LocalPath, Field(min_length=1), AS_TYPED]
    """The PNG that is written; it must not exist yet."""
    num_images: Annotated[int, Field(ge=1, le=200)]
    """Images of the training split, taken from each class in turn; one per row."""
    num_samples: Annotated[int, Field(ge=1, le=50)]
    """Augmented samples of each, one per epoch."""
    epoch: Annotated[int, Field(ge=1)]
    """The first of these epochs, counted from 1 as in metrics.jsonl."""
