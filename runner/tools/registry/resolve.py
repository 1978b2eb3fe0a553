"""From a reference such as models:/birds@champion to a package folder on this machine."""

from __future__ import annotations

import os
from pathlib import Path

from runner.base.errors import CheckpointError, ConfigError, Problem, RegistryError
from runner.base.user_paths import scheme_of, typed_path
from runner.config.schema.calls.of_models import MLFLOW_SCHEMES
from runner.data.sources.paths import cache_folder
from runner.tools.registry.folder_registry import FolderRegistry
from runner.tools.registry.versions import SCHEME, ModelRegistry, Reference, not_registered, read_reference

REGISTRY_VARIABLE = "RUNNER_REGISTRY"
_USUAL_FOLDER = "models"


def open_registry(uri: str | None) -> ModelRegistry:
    """The registry at a place.

    Args:
        uri: a folder or an address; None: what the environment variable RUNNER_REGISTRY says, else the folder `models`.

    Raises:
        ConfigError: it is no path, nor an address of a registry.
        MissingPackageError: it is an address, and MLflow is not installed.
    """
    place = uri or os.environ.get(REGISTRY_VARIABLE) or _USUAL_FOLDER
    key = "registry.uri" if uri else REGISTRY_VARIABLE
    if scheme_of(place) in MLFLOW_SCHEMES:
        from runner.tools.registry.mlflow_registry import MlflowRegistry  # noqa: PLC0415 - an extra

        return MlflowRegistry(place, cache_folder() / "models")
    return FolderRegistry(typed_path(place, key).resolve())


def find_version(registry: ModelRegistry, reference: Reference) -> int:
    """The version that a reference names now.

    Raises:
        RegistryError: there is no such model, version or alias.
    """
    if reference.alias is None:
        versions = registry.versions(reference.name)
        if reference.version is None or reference.version not in versions:
            raise not_registered(registry, reference.name, reference.version, versions)
        return reference.version
    aliases = registry.aliases(reference.name)
    if reference.alias not in aliases:
        if not registry.versions(reference.name):
            raise not_registered(registry, reference.name, None, [])
        there_are = f"it has {', '.join(sorted(aliases))}" if aliases else "it has none"
        raise RegistryError(f"{registry.place}: {reference.name} has no alias {reference.alias!r}; {there_are}")
    return aliases[reference.alias]


def resolve_model(reference: str, registry_uri: str | None = None, *, key: str = "model") -> Path:
    """The package folder that a path or a reference names.

    Args:
        reference: models:/NAME@ALIAS or models:/NAME/VERSION, whose files are then compared with their checksums; any
            other text is a path.
        registry_uri: see :func:`open_registry`.
        key: whose value the reference is, for messages.

    Raises:
        ConfigError: the text is neither.
        RegistryError: there is no such version, or a file of it differs from what was registered.
        CheckpointError: the registry's files are damaged, or a link leads out of it.
    """
    if not reference.startswith(SCHEME):
        return typed_path(reference, key)
    registry, named = open_registry(registry_uri), read_reference(reference, key)
    return registry.package(named.name, find_version(registry, named))


def alias_version(reference: str, registry_uri: str | None = None) -> int:
    """The version that a reference names now; reads one small file, and no package.

    Args:
        reference: models:/NAME@ALIAS, or models:/NAME/VERSION, which names itself.
        registry_uri: see :func:`open_registry`.

    Raises:
        ConfigError: the text is no reference.
        RegistryError: there is no such model, version or alias.
    """
    return find_version(open_registry(registry_uri), read_reference(reference, "model"))


def folder_of(run: str | None, model: str | None, registry_uri: str | None = None) -> Path:
    """The run folder of `run=DIR`, or the package folder of `model=…`, one of which is given.

    Raises:
        ConfigError: none or both are given, or a value is wrong.
        CheckpointError: there is no such folder.
        RegistryError: see :func:`resolve_model`.
    """
    if (run is None) == (model is None):
        given = "not both" if run is not None else "none was given"
        message = (
            f"give run=DIR, a run folder, or model=DIR, its folder model/ alone, or model=models:/NAME@ALIAS; {given}"
        )
        raise ConfigError([Problem(key="run", message=message)])
    place = resolve_model(model, registry_uri) if model is not None else typed_path(run or "", "run")
    if not place.is_dir():
        what = "" if run is None else " is no run folder"
        raise CheckpointError(f"{place.absolute()}{what}: there is no such folder")
    return place.resolve()
