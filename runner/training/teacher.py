"""The teacher of a distillation: a packaged model, checked against the data of its student."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import torch
from torch import nn

from runner.base.errors import CheckpointError, ConfigError, InvalidModelError, Problem
from runner.base.reasons import first_line
from runner.config.schema import Config
from runner.config.schema.data import DataConfig
from runner.dist.collectives import DistContext
from runner.evaluation.weights import load_weights
from runner.model import build_architecture, check_model, check_trained
from runner.run.package import ModelCard, read_package
from runner.run.run_folder import RunFolder, read_record

_KEY = "distill.run"
_NUM_SHOWN = 3


def check_teacher(config: Config, data: DataConfig, classes: tuple[str, ...]) -> None:
    """Check the model in distill.run, if there is one.

    Args:
        config: complete and checked.
        data: the effective data config.
        classes: of the data.

    Raises:
        CheckpointError: there is no model, or it is damaged.
        ConfigError: with each thing in which it doesn't fit the data.
    """
    if config.distill.run is None:
        return
    package = read_package(Path(config.distill.run))
    problems = [_problem(config, message) for message in _differences(package.card, data, classes)]
    if not problems:
        plain = package.card.architecture.model_copy(update={"weights": None})
        size, num_channels = config.data.image_size, data.channels
        try:
            check_trained(package.weights_file, plain, len(classes), num_channels)
            check_model(plain, len(classes), num_channels=num_channels, image_size=size)
        except InvalidModelError as error:
            problems = [_problem(config, f"can't be used: {first_line(error)}")]
    if problems:
        raise ConfigError(problems)


def _some(names: set[str]) -> str:
    """The first few names."""
    few = sorted(names)[:_NUM_SHOWN]
    rest = f" and {len(names) - len(few)} more" if len(names) > len(few) else ""
    return f"{', '.join(few)}{rest}" if few else "none"


def _problem(config: Config, message: str) -> Problem:
    return Problem(key=_KEY, value=config.distill.run, has_value=True, message=message)


def _differences(card: ModelCard, data: DataConfig, classes: tuple[str, ...]) -> Iterator[str]:
    if card.classes != classes:
        its, ours = set(card.classes) - set(classes), set(classes) - set(card.classes)
        which = f"only it has {_some(its)}, only the data {_some(ours)}" if its or ours else "in another order"
        yield f"has other classes than the data: {which}"
    seen = card.preprocessing
    for key in ("channels", "bit_depth", "normalize"):
        before, now = getattr(seen, key), getattr(data, key)
        if before != now:
            yield f"was trained with data.{key}={_shown(before)}, here it is {_shown(now)}"


def _shown(value: object) -> str:
    return str(value.model_dump(mode="json")) if hasattr(value, "model_dump") else str(value)


def build_teacher(config: Config, dist: DistContext, memory_format: torch.memory_format) -> nn.Module | None:
    """The model in distill.run on this process's device; None without one. Every process must call it.

    The main process reads it and broadcasts it, since others may not see its folder.

    Raises:
        CheckpointError: there is no model, or it is damaged.
    """
    if config.distill.run is None:
        return None
    package = read_package(Path(config.distill.run)) if dist.is_main else None
    text = dist.broadcast_object(package.card.model_dump_json() if package is not None else None)
    card = ModelCard.model_validate_json(text)
    module = build_architecture(card.architecture, card.num_classes, card.preprocessing.channels)
    load_weights(module, package.weights_file if package is not None else Path(), dist)
    return module.eval().requires_grad_(False).to(dist.device).to(memory_format=memory_format)


def recorded_teacher(config: Config, folder: RunFolder) -> dict[str, str] | None:
    """What run.json records of the model in distill.run: its folder and the digest of its weights.

    Raises:
        CheckpointError: the run began with another model in the same folder.
    """
    if config.distill.run is None:
        return None
    digest = read_package(Path(config.distill.run)).card.weights_sha256
    before = read_record(folder.path).get("teacher")
    # Another value of distill.run is permitted by resume.allow.
    if isinstance(before, dict) and before.get("run") == config.distill.run and before.get("weights_sha256") != digest:
        raise CheckpointError(f"{config.distill.run} (distill.run) holds another model than when the run began")
    return {"run": config.distill.run, "weights_sha256": digest}
