"""Rules of the own keys of the commands on the registry of models."""

from __future__ import annotations

import re
from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from runner.base.user_paths import refuse_address, scheme_of
from runner.config.schema.base import AS_TYPED, ConfigSection, LocalPath

MLFLOW_SCHEMES = ("http", "https", "sqlite", "mlflow+http", "mlflow+https")
"""Of the addresses at which MLflow's registry is."""
NAME_PATTERN = r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}"
ALIAS_PATTERN = r"[A-Za-z][A-Za-z0-9_-]{0,99}"
REFERENCE_PATTERN = (
    rf"(?:models:/)?(?P<name>{NAME_PATTERN})(?:@(?P<alias>{ALIAS_PATTERN})|/(?P<version>[1-9][0-9]{{0,8}}))"
)
_RESERVED_ALIAS = re.compile(r"latest|[vV][0-9]+")


def _free_alias(text: str) -> str:
    if _RESERVED_ALIAS.fullmatch(text):
        raise ValueError("would read as a version; MLflow keeps latest, v1, v2 and so on for itself")
    return text


def _place_of_registry(text: str) -> str:
    return text if scheme_of(text) in MLFLOW_SCHEMES else refuse_address(text)


RegisteredName = Annotated[str, Field(pattern=f"^{NAME_PATTERN}$"), AS_TYPED]
RegisteredVersion = Annotated[int, Field(ge=1, lt=10**9)]
AliasName = Annotated[str, Field(pattern=f"^{ALIAS_PATTERN}$"), AfterValidator(_free_alias)]


class RegistryRules(ConfigSection):
    """Where models are registered."""

    uri: Annotated[str | None, AfterValidator(lambda text: text and _place_of_registry(text)), AS_TYPED]
    """A folder, or the address of MLflow's registry: http://HOST:PORT, https://… or sqlite:///FILE. null: the
    environment variable RUNNER_REGISTRY, and without it the folder `models` here."""


class ModelsCall(ConfigSection):
    """A command on the registry."""

    registry: RegistryRules
    """Where models are registered."""


class ModelsRegisterCall(ModelsCall):
    """`python -m runner models register run=DIR name=NAME`."""

    run: Annotated[LocalPath, Field(min_length=1), AS_TYPED]
    """The run folder, of a run that is completed; its packaged model becomes a version."""
    name: RegisteredName
    """The model that gets a new version, or a new model: letters, digits, _, - and dots."""
    alias: AliasName | None
    """An alias that names this version from now on, such as champion."""


class ModelsListCall(ModelsCall):
    """`python -m runner models list`."""

    format: Literal["table", "json"]
    """A table for people, or JSON for programs."""


class ModelsShowCall(ModelsCall):
    """`python -m runner models show name=NAME`."""

    name: RegisteredName
    """The model."""
    version: RegisteredVersion | None
    """Show what is known of this version; null: a line for each version."""
    format: Literal["table", "json"]
    """A table for people, or JSON for programs."""


class ModelsPromoteCall(ModelsCall):
    """`python -m runner models promote name=NAME alias=ALIAS`."""

    name: RegisteredName
    """The model."""
    alias: AliasName
    """The alias that names the version from now on."""
    version: RegisteredVersion | None
    """The version; null: the newest."""
    if_better_on: Annotated[LocalPath | None, AS_TYPED]
    """A folder of class folders, or one with train/, val/ or test/ of them: the alias is set only where the version is
    better on these images than the one that has the alias. null: set it in any case. With no version that has the
    alias there is nothing to compare, and it is set."""
    metric: Literal["top1", "loss"]
    """What is compared: the share of images whose first guess is right, or the cross-entropy."""
    confidence: Annotated[float, Field(ge=0.5, lt=1)]
    """The share of bootstrap resamples of the images in which the version must be better."""
    split: Literal["val", "test", "train"]
    """Which split of a folder that has several."""
    batch_size: Annotated[int, Field(ge=1)]
    """Images that are scored at once."""
    device: Literal["auto", "cpu", "cuda", "mps"]
    """Where to compute; auto takes CUDA, then MPS, then the CPU."""
    seed: Annotated[int, Field(ge=0, lt=2**32)]
    """Decides which images the resamples draw: the same images and versions give the same answer."""


class ModelsDownloadCall(ModelsCall):
    """`python -m runner models download name=NAME@ALIAS output=DIR`."""

    name: Annotated[str, Field(min_length=1), AS_TYPED]
    """Which version: NAME@ALIAS or NAME/VERSION."""
    output: Annotated[LocalPath, Field(min_length=1), AS_TYPED]
    """A new folder, which appears once all files in it have the checksums of the registry."""
