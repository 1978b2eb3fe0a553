"""Which version of a model is served: found, verified, and copied so that nobody changes it while it is served."""

from __future__ import annotations

import itertools
import shutil
from dataclasses import dataclass
from pathlib import Path

from runner.base.errors import CheckpointError
from runner.config.schema.calls.of_serving import ServeCall
from runner.run.package import ModelCard, read_package
from runner.tools.registry.resolve import alias_version, resolve_model
from runner.tools.registry.versions import SCHEME, read_reference

_DIGEST_LETTERS = 12
_COUNTER = itertools.count()


@dataclass(frozen=True, eq=False)
class ServedVersion:
    """A package that is served."""

    name: str
    version: str
    """Of the registry; of a plain folder the first letters of the weights' SHA-256."""
    folder: Path
    """A copy of the package, which stays as it is until the server ends."""
    card: ModelCard

    def to_json(self) -> dict[str, str]:
        """As answers name it."""
        return {"name": self.name, "version": self.version}


def take_version(call: ServeCall, work_dir: Path) -> ServedVersion:
    """Verify and copy the version that `model` stands for now.

    Args:
        call: model and name.
        work_dir: where the copy is made, in a folder of its own.

    Raises:
        CheckpointError: there is no package, or it is damaged.
        ConfigError: the model is no path.
        RegistryError: the registry has no such version, or it is damaged.
    """
    reference, number = call.model, registered_version(call)
    if number is not None:  # an alias may name another version in a moment
        reference = f"{SCHEME}{read_reference(call.model, 'model').name}/{number}"
    place = resolve_model(reference, call.registry.uri).resolve()
    if not place.is_dir():
        raise CheckpointError(f"{place}: there is no such folder")
    package = read_package(place)
    folder = work_dir / str(next(_COUNTER))
    try:
        shutil.copytree(package.weights_file.parent, folder)
        card = read_package(folder).card
    except BaseException:  # on a full disk the next version needs the space
        shutil.rmtree(folder, ignore_errors=True)
        raise
    # /model, as in a container, has no folder of the run around it.
    name = (place.parent.name if place.name == "model" else "") or place.name or "model"
    version = card.weights_sha256[:_DIGEST_LETTERS]
    if number is not None:
        name, version = read_reference(call.model, "model").name, str(number)
    return ServedVersion(name=call.serve.name or name, version=version, folder=folder, card=card)


def registered_version(call: ServeCall) -> int | None:
    """The version that models:/NAME@ALIAS is now; None for a plain folder.

    Raises:
        ConfigError, RegistryError: see :func:`runner.tools.registry.resolve.alias_version`.
    """
    return alias_version(call.model, call.registry.uri) if call.model.startswith(SCHEME) else None


def is_alias(call: ServeCall) -> bool:
    """Whether the registry may name another version by and by."""
    return call.model.startswith(SCHEME) and read_reference(call.model, "model").alias is not None
