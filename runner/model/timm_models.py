"""timm's models: names, building, published weights and the preprocessing they were trained with.

timm is an extra and is imported here only, when a config asks for one of its models. Of what a name, a repository or a
file says, no code is run: names are those that timm lists, and weights are read by :mod:`runner.model.state_dict`.
"""

from __future__ import annotations

import difflib
import importlib
import logging
import math
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from torch import nn

from runner.base.errors import InvalidModelError, MissingPackageError, how_to_install
from runner.base.reasons import first_line, reason_of
from runner.config.schema.model import TimmConfig
from runner.model.catalogue import Interpolation, WeightsPreprocessing, cached_path, fetch_url

if TYPE_CHECKING:
    from timm.models import PretrainedCfg

_logger = logging.getLogger("runner")

PRETRAINED = "pretrained"
"""The value of `model.weights` that stands for the weights that timm lists for the model."""
_ARGUMENTS = ("drop_rate", "drop_path_rate", "global_pool", "img_size")
_HUB_FILE = "model.safetensors"
_RGB = 3


def timm_package() -> Any:  # noqa: ANN401 - a module
    """The package timm.

    Raises:
        MissingPackageError: it is not installed; says how to install it.
    """
    try:
        return importlib.import_module("timm")
    except ModuleNotFoundError as error:
        if error.name != "timm":
            raise
        raise MissingPackageError(f"model=timm needs timm, which is not installed: {how_to_install('timm')}") from error


def check_timm_name(name: str) -> None:
    """Check that timm lists a model of this name, and weights with its tag if it has one, such as `resnet50.a1_in1k`.

    Raises:
        InvalidModelError: with the nearest names.
        MissingPackageError: timm is not installed.
    """
    timm = timm_package()
    architecture, _, tag = name.partition(".")
    names = timm.list_models()
    if architecture not in names:
        close = difflib.get_close_matches(architecture.lower(), names, n=3, cutoff=0.5)
        hint = f"did you mean {', '.join(close)}?" if close else "`python -m runner architectures` lists the names"
        raise InvalidModelError(f"model.name = {name!r}: timm has no such model; {hint}")
    tags = [listed.partition(".")[2] for listed in timm.list_models(f"{architecture}.*", pretrained=True)]
    if tag and tag not in tags:
        listed = ", ".join(filter(None, tags)) or "none"
        raise InvalidModelError(
            f"model.name = {name!r}: timm has no weights {tag!r} of {architecture}; it has {listed}"
        )


def build_timm_model(config: TimmConfig, num_classes: int, num_channels: int = 3) -> nn.Module:
    """Build a model with random weights, drawn from torch's global generator.

    Args:
        config: the group `model`.
        num_classes: number of classes of the data.
        num_channels: of the images; timm builds the first layer for them.

    Raises:
        InvalidModelError: timm does not list it, or the architecture does not take one of the keys.
        MissingPackageError: timm is not installed.
    """
    check_timm_name(config.name)
    arguments = {name: value for name in _ARGUMENTS if (value := getattr(config, name)) is not None}
    channels = {} if num_channels == _RGB else {"in_chans": num_channels}
    try:
        module = timm_package().create_model(
            config.name, pretrained=False, num_classes=num_classes, **arguments, **channels
        )
    except Exception as error:  # a builder may raise anything for a value that it can't use
        unexpected = re.search(r"unexpected keyword argument '(\w+)'", str(error))
        if unexpected is not None and unexpected[1] in arguments:
            key = unexpected[1]
            raise InvalidModelError(
                f"model.{key} = {arguments[key]!r}: {config.name} has no such setting; leave it null"
            ) from error
        received = ", ".join(f"model.{key} = {value!r}" for key, value in arguments.items())
        if channels:
            received = ", ".join(filter(None, (received, f"data.channels = {num_channels}")))
        if not received:
            raise
        reason = first_line(error) or type(error).__name__
        raise InvalidModelError(f"{config.name} can't be built with {received} ({reason})") from error
    return cast(nn.Module, module)


def published_weights(config: TimmConfig) -> PretrainedCfg:
    """What timm knows of the weights that `model.weights=pretrained` stands for.

    Raises:
        InvalidModelError: timm has none for this model, or in a form that only code of their own reads.
    """
    check_timm_name(config.name)
    timm = timm_package()
    shown = f"model.weights = {config.weights!r}"
    if config.weights != PRETRAINED:
        raise InvalidModelError(f"{shown}: with model=timm it is null, {PRETRAINED} or a weights file")
    found = timm.get_pretrained_cfg(config.name)
    if found is None or not (found.hf_hub_id or found.url):
        raise InvalidModelError(f"{shown}: timm has no published weights of {config.name}; train from null or a file")
    if found.custom_load and not found.hf_hub_id:
        raise InvalidModelError(f"{shown}: those of {config.name} are in a format of their own; choose another tag")
    return cast("PretrainedCfg", found)


def timm_preprocessing(weights: PretrainedCfg) -> WeightsPreprocessing:
    """The evaluation preprocessing that timm publishes with weights (`timm.data.resolve_data_config`)."""
    size = weights.input_size[-1]
    return WeightsPreprocessing(
        resize_size=math.floor(size / weights.crop_pct),  # as timm.data.transforms_imagenet_eval
        crop_size=size,
        mean=cast("tuple[float, float, float]", tuple(weights.mean)),
        std=cast("tuple[float, float, float]", tuple(weights.std)),
        interpolation=cast(Interpolation, weights.interpolation),
    )


def warn_of_other_crops(weights: PretrainedCfg) -> None:
    """Warn of weights that timm evaluates with whole images, squashed to a square or padded, where this crops them."""
    resize = {"squash": "squash", "border": "letterbox"}.get(weights.crop_mode)
    if resize is not None:
        _logger.warning(
            "model.weights = %r: timm evaluates them with the whole image (crop_mode=%s), as data.resize=%s does; with "
            "data.resize=crop scores of images that are not square can differ from the published",
            PRETRAINED,
            weights.crop_mode,
            resize,
        )


def cached_timm_weights(weights: PretrainedCfg) -> Path | None:
    """The file of these weights in the cache of the Hub or of torch.hub, if it is there."""
    if not weights.hf_hub_id:
        path = cached_path(str(weights.url))
        return path if path.exists() else None
    found = importlib.import_module("huggingface_hub").try_to_load_from_cache(weights.hf_hub_id, _HUB_FILE)
    return Path(found) if isinstance(found, str) else None


def fetch_timm_weights(weights: PretrainedCfg, *, may_download: bool) -> Path:
    """The file of these weights, downloaded if it is missing and `may_download`.

    Raises:
        InvalidModelError: when it is missing and may not or can't be downloaded; names the file and where it goes.
    """
    if (cached := cached_timm_weights(weights)) is not None:
        return cached
    if not weights.hf_hub_id:
        return fetch_url(str(weights.url), PRETRAINED, may_download=may_download)
    shown, repository = f"model.weights = {PRETRAINED!r}", weights.hf_hub_id
    address = f"https://huggingface.co/{repository}"
    advice = f"fetch {_HUB_FILE} of {address} on a machine that can and type model.weights=FILE"
    if not may_download:
        raise InvalidModelError(
            f"{shown}: they are not in the cache of the Hugging Face Hub, and a saved config downloads nothing; "
            f"type model.weights={PRETRAINED} to download them, or {advice}"
        )
    hub = importlib.import_module("huggingface_hub")
    hub.utils.disable_progress_bars()
    hub.utils.logging.set_verbosity_error()  # it would show each of its five attempts
    _logger.info("downloading %s of %s on the Hugging Face Hub", _HUB_FILE, repository)
    try:
        return Path(hub.hf_hub_download(repository, _HUB_FILE))
    except (OSError, ValueError, hub.errors.HfHubHTTPError) as error:
        raise InvalidModelError(
            f"{shown}: {address} can't be downloaded: {reason_of(_innermost(error))}; {advice}"
        ) from error


def in_timms_names(module: nn.Module, tensors: Mapping[str, Any]) -> dict[str, Any]:
    """The tensors under the names and in the shapes of today's timm, as its own loading changes those of older files.

    Most files of timm.models have a function for that, which also fits position embeddings to another image size.
    """
    change = getattr(sys.modules[type(module).__module__], "checkpoint_filter_fn", None)
    return dict(tensors) if change is None else dict(change(dict(tensors), module))


def _innermost(error: BaseException) -> BaseException:
    """What failed first: the Hub's own errors say only that the file can't be located."""
    while (inner := error.__cause__ or error.__context__) is not None:
        error = inner
    return error
