"""Adapts the first layer of a model for RGB, and its pretrained weights, to another number of channels."""

from __future__ import annotations

from torch import Tensor, nn

from runner.base.errors import InvalidModelError

_RGB = 3


def adapt_input_conv(num_channels: int, weight: Tensor) -> Tensor:
    """Weights of a convolution over RGB for another number of channels.

    For one channel the weights are summed, so that grey images give the results of three equal channels; for more they
    are repeated and scaled by 3 / channels. The rule is `adapt_input_conv` of timm/models/_manipulate.py
    (https://github.com/huggingface/pytorch-image-models), which is calculated in float32 too; timm is an extra, and
    these models need none.

    Args:
        num_channels: of the images, at least 1.
        weight: shape (outputs, 3, height, width).

    Returns:
        Shape (outputs, num_channels, height, width), of the same dtype.
    """
    assert weight.ndim == 4 and weight.shape[1] == _RGB, f"no weights for RGB: {tuple(weight.shape)}"
    if num_channels == _RGB:
        return weight
    values = weight.float()
    if num_channels == 1:
        adapted = values.sum(dim=1, keepdim=True)
    else:
        repeated = values.repeat(1, -(-num_channels // _RGB), 1, 1)[:, :num_channels]
        adapted = repeated * (_RGB / num_channels)
    return adapted.to(weight.dtype)


def first_convolutions(module: nn.Module) -> list[tuple[str, nn.Conv2d]]:
    """The names and layers of the 2-d convolutions that see the images; none where other layers do.

    A model of timm names them itself; of others it is the first one in the order of the module.
    """
    layers = {name: layer for name, layer in module.named_modules() if isinstance(layer, nn.Conv2d)}
    if declared := (getattr(module, "pretrained_cfg", None) or {}).get("first_conv"):
        names = (declared,) if isinstance(declared, str) else declared
        return [(name, layers[name]) for name in names if name in layers]
    return list(layers.items())[:1]


def adapt_first_layer(module: nn.Module, num_channels: int, shown: str) -> None:
    """Change the first convolution of a model for RGB in place; nothing is drawn from a random generator.

    Args:
        module: of torchvision, whose first convolution sees the images.
        num_channels: of the images.
        shown: what names the model in a message.

    Raises:
        InvalidModelError: the model has no such layer, or converts colours before it.
    """
    if num_channels == _RGB:
        return
    layer = next((layer for _, layer in first_convolutions(module)), None)
    if layer is None or layer.in_channels != _RGB:
        raise InvalidModelError(
            f"{shown} has no convolution over RGB that could be adapted to data.channels={num_channels}"
        )
    if getattr(module, "transform_input", False):
        raise InvalidModelError(
            f"{shown} normalises red, green and blue itself, as its weights need it: it takes data.channels=3 only, "
            f"not {num_channels}"
        )
    layer.weight = nn.Parameter(adapt_input_conv(num_channels, layer.weight.detach()))
    layer.in_channels = num_channels
