"""Loads a state dict of pretrained weights into a model, with or without its head."""

from __future__ import annotations

import logging
import re
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from torch import Tensor, nn

from runner.base.errors import InvalidModelError
from runner.base.reasons import first_line
from runner.config.schema.model import CustomConfig, ModelConfig, TimmConfig
from runner.model.architectures import find_head_names, stem_name
from runner.model.input_channels import adapt_input_conv, first_convolutions
from runner.model.state_dict import StateDict
from runner.model.timm_models import in_timms_names

_logger = logging.getLogger("runner")

# The prefixes that DistributedDataParallel and AveragedModel, torch.compile and Lightning add to every name.
_WRAPPER_PREFIXES = ("module.", "_orig_mod.", "model.")
# torchvision's densenet files date from when module names could hold dots; torchvision/models/densenet.py has the same
# pattern.
_OLD_DENSENET_NAME = re.compile(
    r"^(.*denselayer\d+\.(?:norm|relu|conv))\.((?:[12])\.(?:weight|bias|running_mean|running_var))$"
)
_AUXILIARY_HEADS = {"googlenet": ("aux1.", "aux2."), "inception_v3": ("AuxLogits.",)}
_LISTED = 5


def load_into(module: nn.Module, weights: StateDict, config: ModelConfig, *, fresh_head: bool) -> None:
    """Copy weights into a model; the log names the parts that keep their random values.

    The head keeps its random values when `fresh_head` is set, or when the file has no head or one of another shape
    (another class count); it is never loaded in part. A small stem keeps its random values when the file's stem has
    another shape. Where the first layer takes another number of channels than that of the file, which takes RGB, its
    weights are adapted (:mod:`runner.model.input_channels`). BatchNorm's batch counters may be missing, as in files
    older than torch 0.4.1. All other tensors must
    exist and fit. On the meta device nothing is copied, but the checks are the same.

    Raises:
        InvalidModelError: lists the tensors that are missing, unexpected or of other shape. The model may hold some
            of the weights then and must not be used.
    """
    expected = module.state_dict()
    weights = _without_wrapper_prefixes(weights, expected)
    tensors = _with_adapted_first_layer(module, _in_todays_names(module, weights.tensors, config), config)
    replaced = _replaced_parts(module, tensors, config, fresh_head=fresh_head)
    tensors = {name: value for name, value in tensors.items() if not _is_under(name, replaced)}
    for name, value in expected.items():
        if name.endswith(".num_batches_tracked"):
            tensors.setdefault(name, value)
    if other_kind := [name for name in tensors if name in expected and _kind(tensors[name]) != _kind(expected[name])]:
        name = other_kind[0]
        raise InvalidModelError(
            f"{_shown(config)} does not fit {config.name}: {name} is {_dtype(tensors[name])}, "
            f"must be {_dtype(expected[name])}. Save model.state_dict() of a model in fp32, fp16 or bf16"
        )
    other_shape = [name for name in tensors if name in expected and _shape(tensors[name]) != _shape(expected[name])]
    state = OrderedDict((name, value) for name, value in tensors.items() if name not in other_shape)
    # In a file without versions, the model's own version is taken as the present one; layers accept any version.
    vars(state)["_metadata"] = {"": {"version": module._version}, **weights.versions}
    try:
        result = module.load_state_dict(state, strict=False)
    except Exception as error:  # a user's module may override loading and raise anything
        reason = " ".join(str(error).split())[:500]
        raise InvalidModelError(f"{_shown(config)} does not fit {config.name}: {reason}") from error
    missing = [name for name in result.missing_keys if name not in other_shape and not _is_under(name, replaced)]
    problems = [
        *_listed("missing", missing),
        *_listed("unexpected", result.unexpected_keys),
        *_listed("of other shape", [_compared(name, tensors, expected) for name in other_shape]),
    ]
    if problems:
        raise InvalidModelError(
            f"{_shown(config)} does not fit {config.name}: {'; '.join(problems)}. "
            "Choose the model that these weights were saved from, or weights of this one"
        )


def _without_wrapper_prefixes(weights: StateDict, expected: Mapping[str, Any]) -> StateDict:
    tensors, versions = dict(weights.tensors), weights.versions
    if "n_averaged" not in expected:
        tensors.pop("n_averaged", None)  # the counter of torch.optim.swa_utils.AveragedModel
    while prefix := _wrapper_prefix(tensors, expected):
        tensors = {name.removeprefix(prefix): value for name, value in tensors.items()}
        versions = {
            name.removeprefix(prefix[:-1]).removeprefix("."): value
            for name, value in versions.items()
            if f"{name}.".startswith(prefix)
        }
    return StateDict(tensors=tensors, versions=versions)


def _wrapper_prefix(names: Iterable[str], expected: Iterable[str]) -> str | None:
    """A prefix that all names in the file have and no name of the model has."""
    given, wanted = tuple(names), tuple(expected)
    for prefix in _WRAPPER_PREFIXES:
        has_prefix = bool(given) and all(name.startswith(prefix) for name in given)
        if has_prefix and not any(name.startswith(prefix) for name in wanted):
            return prefix
    return None


def _in_todays_names(module: nn.Module, tensors: Mapping[str, Any], config: ModelConfig) -> dict[str, Any]:
    """The tensors under the names of the present models of torchvision and timm, without auxiliary heads."""
    if isinstance(config, CustomConfig):
        return dict(tensors)
    if isinstance(config, TimmConfig):
        try:
            return in_timms_names(module, tensors)
        except Exception as error:  # timm's code expects the tensors of its own files
            raise InvalidModelError(
                f"{_shown(config)} does not fit {config.name}: timm can't read it ({first_line(error)})"
            ) from error
    surplus = _AUXILIARY_HEADS.get(config.name, ())
    return {
        _OLD_DENSENET_NAME.sub(r"\1\2", name): value for name, value in tensors.items() if not name.startswith(surplus)
    }


def _with_adapted_first_layer(module: nn.Module, tensors: dict[str, Any], config: ModelConfig) -> dict[str, Any]:
    adapted = {}
    for layer_name, layer in first_convolutions(module):
        name, wanted = f"{layer_name}.weight", tuple(layer.weight.shape)
        given = tensors.get(name)
        if not isinstance(given, Tensor) or not given.is_floating_point():
            continue
        if wanted[1] == 3 or _shape(given) != (wanted[0], 3, *wanted[2:]):
            continue
        how = "summed" if wanted[1] == 1 else "repeated"
        _logger.info("%s: the weights of %s, for 3 channels, are %s for %d", _shown(config), name, how, wanted[1])
        adapted[name] = adapt_input_conv(wanted[1], given)
    return {**tensors, **adapted}


def _replaced_parts(
    module: nn.Module, tensors: Mapping[str, Any], config: ModelConfig, *, fresh_head: bool
) -> tuple[str, ...]:
    """The parts that keep their random values; logs them."""
    replaced: list[str] = []
    head, stem = find_head_names(module), stem_name(config)
    if head:
        if fresh_head or not all(_fits(layer, module, tensors) for layer in head):
            replaced.extend(head)
            _logger.info("%s: the head (%s) is new and starts from random values", _shown(config), " and ".join(head))
        else:
            _logger.info("%s: the head (%s) fits and is kept", _shown(config), " and ".join(head))
    if stem is not None and any(_is_under(name, (stem,)) for name in tensors) and not _fits(stem, module, tensors):
        replaced.append(stem)
        _logger.warning(
            "%s was made with another stem: the small one (%s) starts from random values", _shown(config), stem
        )
    return tuple(replaced)


def _fits(part: str, module: nn.Module, tensors: Mapping[str, Any]) -> bool:
    given = {name: _shape(value) for name, value in tensors.items() if _is_under(name, (part,))}
    wanted = {f"{part}.{name}": _shape(value) for name, value in module.get_submodule(part).state_dict().items()}
    return given == wanted


def _is_under(name: str, parts: Sequence[str]) -> bool:
    return any(name.startswith(f"{part}.") for part in parts)


def _shape(value: Any) -> tuple[int, ...] | None:  # noqa: ANN401 - modules may keep any extra state
    return tuple(value.shape) if hasattr(value, "shape") else None


def _kind(value: Any) -> str:  # noqa: ANN401 - modules may keep any extra state
    """Kinds between which values are not converted: floating point of any width, each other dtype, no tensor."""
    if not isinstance(value, Tensor):
        return "none"
    return "floating" if value.is_floating_point() else _dtype(value)


def _dtype(value: Any) -> str:  # noqa: ANN401 - modules may keep any extra state
    return str(value.dtype).removeprefix("torch.") if isinstance(value, Tensor) else f"a {type(value).__name__}"


def _shown(config: ModelConfig) -> str:
    return f"model.weights = {config.weights!r}"


def _listed(kind: str, names: Sequence[str]) -> list[str]:
    if not names:
        return []
    more = f", and {len(names) - _LISTED} more" if len(names) > _LISTED else ""
    return [f"{len(names)} {kind} ({', '.join(names[:_LISTED])}{more})"]


def _compared(name: str, tensors: Mapping[str, Any], expected: Mapping[str, Any]) -> str:
    received, wanted = ("×".join(map(str, _shape(source[name]) or ())) or "a scalar" for source in (tensors, expected))
    return f"{name}: {received}, must be {wanted}"
