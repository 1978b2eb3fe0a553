"""What a run says of itself, at its start and at its end."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

from runner.base.console import LOGGER
from runner.config.schema import Config
from runner.data.fingerprint import Content, fingerprint
from runner.data.loader.balance import weights_by_class
from runner.data.splits import Splits
from runner.dist.device import Precision, describe_device
from runner.optimizer import peak_learning_rate
from runner.trainer.loop import Trainer
from runner.trainer.progress import Best

_MOST_SHOWN_CLASSES = 20


def introduce(config: Config, splits: Splits, trainer: Trainer, precision: Precision) -> None:
    """Say what is about to be trained, on what, and how."""
    dist = trainer.placement.dist
    num_parameters = sum(parameter.numel() for parameter in trainer.state.model.parameters())
    processes = f"{dist.world_size} process" + ("es" if dist.world_size > 1 else "")
    is_scaled = config.optimizer.lr_scaling == "linear"
    LOGGER.info("run folder  %s", trainer.writer.folder.parent)
    LOGGER.info(
        "model       %s, %.1f M parameters, %d classes", config.model.name, num_parameters / 1e6, len(splits.classes)
    )
    LOGGER.info(
        "data        %s: %s training and %s validation images, %d px, batch %d × %s",
        config.data.source,
        f"{len(splits.train):,}",
        f"{len(splits.val):,}",
        config.data.image_size,
        config.data.batch_size,
        processes,
    )
    for note in splits.notes:
        LOGGER.info("            %s", note)
    if config.data.balance != "none":
        LOGGER.info("balance     %s: %s", config.data.balance, _shown_weights(weights_by_class(splits)))
    LOGGER.info("device      %s", describe_device(dist.device))
    LOGGER.info("precision   %s (%s)", precision.name, precision.reason)
    LOGGER.info(
        "schedule    %s, %s of %d steps, peak learning rate %g (%s)",
        config.schedule.name,
        _epochs(config.trainer.epochs),
        trainer.steps_per_epoch,
        peak_learning_rate(config.optimizer, dist.world_size),
        f"{config.optimizer.lr:g} × {processes}" if is_scaled else "not scaled with the number of processes",
    )


def _shown_weights(weights: dict[str, float]) -> str:
    """Per class; of many classes those of the extremes."""
    ordered = sorted(weights.items(), key=lambda item: item[1])
    if len(ordered) <= _MOST_SHOWN_CLASSES:
        return ", ".join(f"{name} {weight:.3g}" for name, weight in weights.items())
    low, high = ordered[0], ordered[-1]
    return f"{len(ordered)} classes, from {low[1]:.3g} ({low[0]}) to {high[1]:.3g} ({high[0]}); all of them in run.json"


def conclude(folder: Path, best: Best, num_epochs: int, seconds: float) -> None:
    """Say how it ended, and what can be done with it."""
    value = f"{best.value:.4f}" if best.metric == "val_loss" else f"{best.value:.2%}"
    kind = " of the averaged weights (EMA)" if best.weights == "ema" else ""
    LOGGER.info("completed   %s in %.1f seconds", _epochs(num_epochs), seconds)
    LOGGER.info("best        %s = %s%s at epoch %d", best.metric, value, kind, best.epoch)
    LOGGER.info("model       %s", folder / "model")
    LOGGER.info("look at it  tensorboard --logdir %s", shlex.quote(str(folder / "tensorboard")))
    LOGGER.info("use it      runner.load_model(%r)", str(folder))


def _epochs(number: int) -> str:
    return f"{number} epoch{'' if number == 1 else 's'}"


def facts_of_data(splits: Splits, content: Content | None = None) -> dict[str, Any]:
    """What run.json says of the data set: what identifies it, and how many images and classes it has."""
    return {
        "fingerprint": fingerprint(splits),
        **({"content": content} if content is not None else {}),
        "num_classes": len(splits.classes),
        "num_train": len(splits.train),
        "num_val": len(splits.val),
        "num_test": len(splits.test) if splits.test is not None else 0,
    }
