"""What a registry knows of a version, and how a version is named."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, Protocol

from pydantic import Field, field_validator

from runner.base.errors import ConfigError, Problem, RegistryError
from runner.base.untrusted import printable
from runner.config.schema.calls.of_models import ALIAS_PATTERN, NAME_PATTERN, REFERENCE_PATTERN
from runner.run.contents import Contents, Count

VERSION_FILE = "version.json"
MODEL_CARD_FILE = "README.md"
PACKAGE_FOLDER = "model"
SCHEME = "models:/"
LAST_VERSION = 10**9 - 1
_REFERENCE = re.compile(REFERENCE_PATTERN)
_FILE_NAME = re.compile(r"(?:[A-Za-z0-9_-]+/)?[A-Za-z0-9_-][A-Za-z0-9_.-]*")
_MOST_FILES = 100
_MOST_SHOWN = 10
Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


class RegisteredFile(Contents):
    """Size and checksum of a file of a version."""

    sha256: Sha256
    bytes: Count


class _Lineage(Contents):
    run: str
    name: str | None = None
    group: str | None = None
    tags: dict[str, str | int | float | bool]
    start: str | None = None
    end: str | None = None
    git_commit: str | None = None
    git_dirty: bool | None = None
    data: str | None = None
    data_fingerprint: str | None = None


class VersionRecord(Contents):
    """version.json."""

    format: Literal[1]
    name: Annotated[str, Field(pattern=f"^{NAME_PATTERN}$")]
    version: Annotated[int, Field(ge=1, le=LAST_VERSION)]
    registered: str
    """UTC, as ISO 8601."""
    files: dict[str, RegisteredFile]
    """Each file but version.json itself, and the model card, which people write in."""
    lineage: _Lineage
    """The run that it is from, with its commit and data."""
    architecture: str
    num_classes: Annotated[int, Field(ge=1)]
    best: dict[str, Any]
    """The metric by which the weights were chosen, its value and its epoch."""
    metrics: dict[str, dict[str, Any]]
    """By split."""

    @field_validator("files")
    @classmethod
    def _lie_in_the_folder(cls, files: dict[str, RegisteredFile]) -> dict[str, RegisteredFile]:
        strange = [name for name in files if not _FILE_NAME.fullmatch(name) or len(name) > 200]
        if strange or len(files) > _MOST_FILES:
            raise ValueError(f"{printable(strange[0])!r} is no file of a version" if strange else "are too many")
        missing = {f"{PACKAGE_FOLDER}/model.json", f"{PACKAGE_FOLDER}/model.safetensors"} - set(files)
        if missing:
            raise ValueError(f"does not have {min(missing)}")
        return files


class Aliases(Contents):
    """aliases.json: the version that each alias names."""

    __pydantic_extra__: dict[
        Annotated[str, Field(pattern=f"^{ALIAS_PATTERN}$")], Annotated[int, Field(ge=1, le=LAST_VERSION)]
    ]


@dataclass(frozen=True, kw_only=True)
class Reference:
    """NAME@ALIAS or NAME/VERSION."""

    name: str
    alias: str | None = None
    version: int | None = None

    def __str__(self) -> str:
        return f"{self.name}@{self.alias}" if self.alias is not None else f"{self.name}/{self.version}"


def read_reference(text: str, key: str) -> Reference:
    """The version that a text such as models:/birds@champion or birds/2 names.

    Args:
        text: as typed.
        key: whose value it is, for messages.

    Raises:
        ConfigError: the text is no such name.
    """
    match = _REFERENCE.fullmatch(text)
    if match is None:
        message = (
            "names no registered version; expected models:/NAME@ALIAS or models:/NAME/VERSION, with letters, digits, "
            "_, - and dots in the name"
        )
        raise ConfigError([Problem(key=key, value=printable(text), has_value=True, message=message)])
    version = match["version"]
    return Reference(name=match["name"], alias=match["alias"], version=None if version is None else int(version))


@dataclass(frozen=True, kw_only=True)
class Draft:
    """What is to become a version."""

    write: Callable[[Path], None]
    """Writes the files of the version into an empty folder, but for version.json and the model card."""
    facts: dict[str, Any]
    """The entries of :class:`VersionRecord` that the registry itself does not know."""
    card: Callable[[VersionRecord], str]
    """The model card, as Markdown."""


class ModelRegistry(Protocol):
    """A registry of models."""

    @property
    def place(self) -> str:
        """Where it is, for messages; without credentials."""

    def names(self) -> list[str]:
        """The registered models, sorted."""

    def versions(self, name: str) -> list[int]:
        """The versions of a model, ascending; none of a model that is not registered."""

    def aliases(self, name: str) -> Mapping[str, int]:
        """The version that each alias of a model names."""

    def read(self, name: str, version: int) -> VersionRecord:
        """What is known of a version.

        Raises:
            RegistryError: there is no such version.
            CheckpointError: its record is damaged.
        """

    def set_alias(self, name: str, alias: str, version: int, *, holder: int | Literal["any"] | None = "any") -> None:
        """Let an alias name a version, whose files are checked first.

        Args:
            name: the model.
            alias: the alias.
            version: the version.
            holder: set it only if the alias still names this version; None: still names none.

        Raises:
            RegistryError: there is no such version, it is damaged, or the alias has been set by another meanwhile.
        """

    def package(self, name: str, version: int) -> Path:
        """The package folder of a version, on this machine, once its files have the registered checksums.

        Raises:
            RegistryError: there is no such version, or a file differs.
        """

    def download(self, name: str, version: int, output: Path) -> None:
        """Copy a version to a new folder, which appears when all its files are checked.

        Raises:
            RegistryError: there is no such version, or a file differs; nothing is left then.
            OutputError: the folder exists, or can't be written.
        """

    def add(self, name: str, draft: Draft) -> int:
        """Make a new version, whose number is the next one.

        Raises:
            RegistryError: the registry can't take it.
            OutputError: it can't be written; nothing is left then.
        """


def not_registered(registry: ModelRegistry, name: str, version: int | None, versions: Sequence[int]) -> RegistryError:
    """That there is no such model or version, and which there are."""
    if not versions:
        return RegistryError(
            f"{registry.place} has no model {name!r}; models list shows what there is, registry.uri=… names another "
            "registry"
        )
    shown = ", ".join(map(str, versions[-_MOST_SHOWN:]))
    more = "… " if len(versions) > _MOST_SHOWN else ""
    return RegistryError(f"{registry.place} has no {name}/{version}; versions are {more}{shown}")
