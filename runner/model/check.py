"""Checks a model before training, and trained weights before loading, without allocating the model's weights."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from runner.base.errors import CheckpointError, InvalidModelError
from runner.base.reasons import first_line
from runner.config.schema.model import CustomConfig, ModelConfig, TimmConfig
from runner.config.schema.transforms import height_and_width
from runner.model.architectures import build_architecture, head_of
from runner.model.fit import load_into
from runner.model.published import cached_weights, fetch, named_weights
from runner.model.state_dict import read_weights_file

_USUAL_SIZES = (32, 64, 96, 128, 160, 192, 224, 240, 256, 299, 320, 384, 448, 512)
_SHOWN = 3


def check_model(
    config: ModelConfig,
    num_classes: int,
    *,
    num_channels: int = 3,
    image_size: int | tuple[int, int] | None = None,
    other_sizes: Mapping[str, int | tuple[int, int]] = MappingProxyType({}),
    needs_head: bool = False,
    has_to_be_here: bool = False,
    also: Callable[[nn.Module], object] | None = None,
) -> None:
    """Raise the errors that `build_model` would raise. Does not change torch's CPU generator.

    A custom model is built; others are built on the meta device, where weights have shapes but no values. Only names
    and shapes are read from a weights file. Weights that would have to be downloaded are not checked.

    Args:
        config: the group `model`.
        num_classes: number of classes of the data.
        num_channels: of the images.
        image_size: of the training images in pixels; if given, two images are sent through the model.
        other_sizes: the same for other images, by the key that says it.
        needs_head: whether the model must have an unambiguous head, as trainer.freeze_backbone_epochs needs it.
        has_to_be_here: whether weights that would have to be downloaded are an error.
        also: called with the module, whose parameters may have no values; raises what else is wrong with it.

    Raises:
        MissingPackageError: the library of the model is not installed.
        InvalidModelError: as `build_model`; also when the model fails on images of this size, returns anything but one
            tensor of shape (batch, num_classes), or lacks a head that is needed.
    """
    with torch.random.fork_rng(devices=()):
        if isinstance(config, CustomConfig):
            module = build_architecture(config, num_classes, num_channels)
        else:
            module = without_values(config, num_classes, num_channels)
        sizes = {"data.image_size": image_size, **other_sizes}
        _check_sizes(module, config, num_classes, num_channels, sizes)
        if needs_head:
            head_of(module, config)
        if also is not None:
            also(module)
        named = named_weights(config)
        if named is not None and has_to_be_here:
            fetch(named, may_download=False)
        path = cached_weights(named) if named is not None else Path(config.weights) if config.weights else None
        if path is not None:
            weights = read_weights_file(path, shapes_only=True)
            load_into(module.to("meta"), weights, config, fresh_head=named is not None)


def check_trained(file: Path, config: ModelConfig, num_classes: int, num_channels: int = 3) -> None:
    """Check that trained weights fit the model, before memory is allocated for it.

    A run folder may claim any number of classes; the size of the weights file is real. The size of a custom model is
    known to its own code only: its weights are checked when they are loaded.

    Raises:
        CheckpointError: as :func:`read_trained`.
    """
    if not isinstance(config, CustomConfig):
        read_trained(file, without_values(config, num_classes, num_channels).state_dict())


def read_trained(file: Path, expected: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors of a safetensors file, memory-mapped.

    Args:
        file: a file that training wrote.
        expected: the state dict of the model; only its names, shapes and dtypes are used.

    Raises:
        CheckpointError: the file can't be read, holds other tensors, or values that are not finite; names the tensor.
    """
    try:
        with safe_open(file, framework="pt", device="cpu") as opened:
            found = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118 - no mapping
    except (OSError, SafetensorError, ValueError, RuntimeError) as error:
        raise CheckpointError(f"{file} is damaged or no safetensors file ({first_line(error)})") from error
    if differences := _differences(found, expected):
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
    def described(value: Tensor) -> str:
        return f"{'×'.join(map(str, value.shape)) or 'a scalar'} of {str(value.dtype).removeprefix('torch.')}"

    missing = [f"{name} is missing" for name in expected if name not in found]
    surplus = [f"{name[:80]!r} is none of its tensors" for name in found if name not in expected]
    others = [
        f"{name} is {described(value)}, must be {described(expected[name])}"
        for name, value in found.items()
        if name in expected and (value.shape != expected[name].shape or value.dtype != expected[name].dtype)
    ]
    return [*missing, *surplus, *others]


def without_values(config: ModelConfig, num_classes: int, num_channels: int = 3) -> nn.Module:
    """An architecture, not a custom one, on the meta device, where it takes no memory."""
    with torch.random.fork_rng(devices=()):
        try:
            try:
                with _ParametersOnMeta():
                    return build_architecture(config, num_classes, num_channels).to("meta")
            except RuntimeError:
                if not isinstance(config, TimmConfig):
                    raise
                # Two of timm's families calculate with their weights while they are built.
                return build_architecture(config, num_classes, num_channels).to("meta")
        except (RuntimeError, OverflowError) as error:
            raise InvalidModelError(
                f"model.name = {config.name!r} can't be built for {num_classes} classes ({first_line(error)})"
            ) from error


def _check_sizes(
    module: nn.Module,
    config: ModelConfig,
    num_classes: int,
    num_channels: int,
    sizes: Mapping[str, int | tuple[int, int] | None],
) -> None:
    """Send images of the size of each key, in pixels, through the model; of equal sizes only the first."""
    tried = set()
    for key, size in sizes.items():
        if size is not None and size not in tried:
            _check_outputs(module, config, num_classes, (num_channels, *height_and_width(size)), key)
        tried.add(size)


def _check_outputs(
    module: nn.Module, config: ModelConfig, num_classes: int, shape: tuple[int, int, int], key: str
) -> None:
    """Send two images of this shape (channels, height, width), which this key determines, through the model."""
    images = torch.zeros(2, *shape, device=next(module.parameters()).device)
    try:
        with torch.no_grad():
            outputs = module.train()(images)
    except Exception as error:  # layers raise anything for a size that they can't process
        channels, height, width = shape
        fitting = _fitting_size(module, channels) if images.is_meta else None
        of_channels = f" with {channels} channel{'' if channels == 1 else 's'}" if channels != 3 else ""
        advice = f"; it takes images of {fitting}×{fitting} px: {key}={fitting}" if fitting else ""
        if fitting and isinstance(config, TimmConfig):
            side = str(height) if height == width else f"[{height},{width}]"
            advice += f", or, if it can be built for others, model.img_size={side}"
        raise InvalidModelError(
            f"model.name = {config.name!r} can't take images of {height}×{width} px "
            f"({key}){of_channels}{advice} ({first_line(error)})"
        ) from error
    wanted = (2, num_classes)
    received = tuple(outputs.shape) if isinstance(outputs, Tensor) else f"a {type(outputs).__name__}"
    if received != wanted:
        raise InvalidModelError(
            f"model.name = {config.name!r} returns {received} for two images; "
            f"it must be one tensor of shape {wanted}: a score for each of the {num_classes} classes"
        )


def _fitting_size(module: nn.Module, channels: int) -> int | None:
    """The first of the usual sizes that a module on the meta device takes; None where it takes none of them."""
    for size in _USUAL_SIZES:
        try:
            with torch.no_grad():
                module(torch.zeros(2, channels, size, size, device="meta"))
        except Exception:  # layers raise anything; that they do is the answer for this size
            continue
        return size
    return None


class _ParametersOnMeta(TorchFunctionMode):
    """Allocates tensors of `torch.empty`, which are the parameters, on the meta device.

    Unlike `torch.device("meta")` it does not affect calculations: RegNets compute their widths with tensors.
    """

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:  # noqa: ANN401 - whatever the intercepted function returns
        options = dict(kwargs or {})
        if func is torch.empty and options.get("device") is None:
            options["device"] = "meta"
        return func(*args, **options)
