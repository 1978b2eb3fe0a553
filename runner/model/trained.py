"""The weights of a model that is trained already: they fit it exactly and are finite, or are not loaded."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from runner.base.errors import CheckpointError
from runner.config.schema.model import CustomConfig, ModelConfig
from runner.model.check import without_values

_SHOWN = 3


def check_trained(file: Path, config: ModelConfig, num_classes: int) -> None:
    """Refuse weights of another model before memory is taken for this one.

    What a run folder says of its classes may ask for any amount of memory; the file holds what there really is. Of a
    custom model only its own code knows how large it is: its weights are checked when they are loaded.

    Raises:
        CheckpointError: as :func:`read_trained`.
    """
    if not isinstance(config, CustomConfig):
        read_trained(file, without_values(config, num_classes).state_dict())


def read_trained(file: Path, expected: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors of a safetensors file, which are views of it.

    Args:
        file: what training has written.
        expected: the state dict of the model, of whose tensors only names, shapes and dtypes count.

    Raises:
        CheckpointError: it can't be read, holds other tensors, or numbers that are infinite or none; names the tensor.
    """
    try:
        with safe_open(file, framework="pt", device="cpu") as opened:
            found = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118 - no mapping
    except (OSError, SafetensorError, ValueError, RuntimeError) as error:
        raise CheckpointError(f"{file} can't be read: {error}") from error
    if differences := [*_differences(found, expected)]:
        more = f"; and {len(differences) - _SHOWN} more" if len(differences) > _SHOWN else ""
        raise CheckpointError(f"{file} does not fit the architecture: {'; '.join(differences[:_SHOWN])}{more}")
    for name, value in found.items():
        if value.is_floating_point() and not bool(torch.isfinite(value).all()):
            raise CheckpointError(
                f"{file}: {name} holds values that are infinite or not a number, so the model would score nothing; "
                "take an earlier checkpoint, or train again"
            )
    return found


def _differences(found: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> list[str]:
    missing = [f"{name} is missing" for name in expected if name not in found]
    surplus = [f"{name[:80]!r} is none of its tensors" for name in found if name not in expected]
    others = [
        f"{name} is {_described(value)}, must be {_described(expected[name])}"
        for name, value in found.items()
        if name in expected and (value.shape != expected[name].shape or value.dtype != expected[name].dtype)
    ]
    return [*missing, *surplus, *others]


def _described(value: Tensor) -> str:
    return f"{'×'.join(map(str, value.shape)) or 'a scalar'} of {str(value.dtype).removeprefix('torch.')}"
