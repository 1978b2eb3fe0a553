"""Which version of a model is served: found, verified, and copied so that nobody changes it while it is served."""

from __future__ import annotations

import itertools
import re
import shutil
from dataclasses import dataclass
from pathlib import Path

from runner.base.errors import CheckpointError
from runner.base.user_paths import typed_path
from runner.config.schema.calls_serve import ServeCall
from runner.run.package import ModelCard, read_package

_REGISTERED = re.compile(r"models:/(?P<name>[^/@]+)")
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
        ConfigError: the model is no path, or the registry has no such model.
    """
    place = typed_path(call.model, "model").resolve()
    if not place.is_dir():
        raise CheckpointError(f"{place}: there is no such folder")
    package = read_package(place)
    folder = work_dir / str(next(_COUNTER))
    shutil.copytree(package.weights_file.parent, folder)
    card = read_package(folder).card
    name = call.serve.name or (place.parent.name if place.name == "model" else place.name)
    return ServedVersion(name=name, version=card.weights_sha256[:_DIGEST_LETTERS], folder=folder, card=card)
