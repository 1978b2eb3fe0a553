"""Refusing a model before anything is trained, without network and without allocating its weights."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from runner.base.errors import InvalidModelError
from runner.config.schema.model import CustomConfig, ModelConfig
from runner.model.architectures import build_architecture
from runner.model.catalogue import torchvision_weights
from runner.model.download import cached_path, fetch
from runner.model.fit import load_into
from runner.model.head import head_of
from runner.model.state_dict import read_weights_file


def check_model(
    config: ModelConfig,
    num_classes: int,
    *,
    image_size: int | None = None,
    needs_head: bool = False,
    has_to_be_here: bool = False,
) -> None:
    """Find what `build_model` would refuse. Leaves torch's CPU generator as it was.

    Only the custom model is really built; others are built on the meta device, where weights have shapes but no values.
    Of a weights file only names and shapes are read. Weights that torchvision would have to download are not looked at.

    Args:
        config: the model.
        num_classes: number of classes of the data.
        image_size: side of the square training images in pixels; if given, two images are sent through the model.
        needs_head: whether the head must be told from the backbone, as for freezing the latter.
        has_to_be_here: whether weights that torchvision would have to download are refused.

    Raises:
        InvalidModelError: as `build_model`; also for images that the model can't take, outputs that are not one tensor
            of shape (batch, num_classes), and a head that is needed but can't be told.
    """
    with torch.random.fork_rng(devices=()):
        if isinstance(config, CustomConfig):
            module = build_architecture(config, num_classes)
        else:
            module = without_values(config, num_classes)
        if image_size is not None:
            _check_outputs(module, config, num_classes, image_size)
        if needs_head:
            head_of(module, config)
        named = torchvision_weights(config)
        if named is not None and has_to_be_here:
            fetch(named, may_download=False)
        path = _weights_at_hand(config)
        if path is not None:
            weights = read_weights_file(path, shapes_only=True)
            load_into(module.to("meta"), weights, config, fresh_head=torchvision_weights(config) is not None)


def without_values(config: ModelConfig, num_classes: int) -> nn.Module:
    """An architecture, not a custom one, on the meta device: it has shapes, but takes no memory.

    Raises:
        InvalidModelError: for a name that nobody offers.
    """
    with torch.random.fork_rng(devices=()):
        try:
            with _ParametersOnMeta():
                return build_architecture(config, num_classes).to("meta")
        except (RuntimeError, OverflowError) as error:
            reason = str(error).partition("\n")[0]
            raise InvalidModelError(
                f"model.name = {config.name!r} can't be built for {num_classes} classes: {reason}"
            ) from error


def _weights_at_hand(config: ModelConfig) -> Path | None:
    named = torchvision_weights(config)
    if named is not None:
        path = cached_path(named)
        return path if path.exists() else None
    return None if config.weights is None else Path(config.weights)


def _check_outputs(module: nn.Module, config: ModelConfig, num_classes: int, image_size: int) -> None:
    images = torch.zeros(2, 3, image_size, image_size, device=next(module.parameters()).device)
    try:
        with torch.no_grad():
            outputs = module.train()(images)
    except Exception as error:  # models refuse sizes with whatever their layers raise
        reason = " ".join(str(error).split())[:300]
        raise InvalidModelError(
            f"model.name = {config.name!r} can't take images of {image_size}×{image_size} px "
            f"(data.image_size): {type(error).__name__}: {reason}"
        ) from error
    wanted = (2, num_classes)
    received = tuple(outputs.shape) if isinstance(outputs, Tensor) else f"a {type(outputs).__name__}"
    if received != wanted:
        raise InvalidModelError(
            f"model.name = {config.name!r} answers two images with {received}; "
            f"it must be one tensor of shape {wanted}: a score for each of the {num_classes} classes"
        )


class _ParametersOnMeta(TorchFunctionMode):
    """Allocates what `torch.empty` is asked for, that is parameters, on the meta device.

    Other than `torch.device("meta")` it leaves calculations alone: RegNets compute their widths with tensors.
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
