"""The classification head: the layer that turns features into one score per class."""

from __future__ import annotations

from torch import nn

from runner.base.errors import InvalidModelError
from runner.config.schema.model import ModelConfig

# Every classifier of torchvision has exactly one of these, and so have most other people's.
HEAD_ATTRIBUTES = ("fc", "classifier", "head", "heads")


def find_head_name(module: nn.Module) -> str | None:
    """The dotted name of the head, such as `fc` or `classifier.6`; None where it can't be told.

    The head is the last linear or 2-d convolution layer under the one attribute of `module` that is called fc,
    classifier, head or heads; where there is no such layer under it, the whole attribute.
    """
    candidates = [
        name
        for name, child in module.named_children()
        if name in HEAD_ATTRIBUTES and next(child.parameters(), None) is not None
    ]
    if len(candidates) != 1:
        return None
    (attribute,) = candidates
    layers = module.get_submodule(attribute).named_modules(prefix=attribute)
    scoring = [name for name, layer in layers if isinstance(layer, nn.Linear | nn.Conv2d)]
    return scoring[-1] if scoring else attribute


def head_of(module: nn.Module, config: ModelConfig) -> nn.Module:
    """The head of a model that was built from `config`: what is replaced with pretrained weights, and what is trained
    while the backbone is frozen.

    Of a VGG, AlexNet or MobileNet v3 that is the last of several linear layers.

    Raises:
        InvalidModelError: when the head can't be told.
    """
    name = find_head_name(module)
    if name is None:
        raise InvalidModelError(
            f"model.name = {config.name!r}: can't tell which layer is the head; {type(module).__name__} needs "
            f"exactly one attribute with parameters among {', '.join(HEAD_ATTRIBUTES)} "
            f"(it has {', '.join(name for name, _ in module.named_children()) or 'no submodules'}). "
            "Rename it, or train everything from the start with trainer.freeze_backbone_epochs=0"
        )
    return module.get_submodule(name)
