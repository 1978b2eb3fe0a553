"""What a training writes about its run: its start, its packaged model and its end, to the run folder and the log."""

from __future__ import annotations

import json
import shlex
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from runner.base import wait_policy
from runner.base.console import FILE_ONLY, LOGGER
from runner.base.errors import CheckpointError, OutputError, RunnerError, StoppedOnRequest
from runner.base.untrusted import printable
from runner.config.schema import Config
from runner.config.schema.data import DataConfig
from runner.config.schema.trainer import TrainerConfig
from runner.data.fingerprint import Content, fingerprint
from runner.data.loader.order import weights_by_class
from runner.data.splits import Splits
from runner.dist.collectives import DistContext
from runner.dist.device import Precision, describe_device
from runner.optimizer import peak_learning_rate
from runner.run import installed, provenance
from runner.run.checkpoint import CheckpointStore
from runner.run.package import preprocessing_of, write_package
from runner.run.run_folder import RunFolder, summary_of_experiment
from runner.run.snapshot import FILE_NAME, Snapshot, folders_of_runs, take_snapshot
from runner.trainer.loop import Trainer
from runner.trainer.metrics_log import summary_of_best
from runner.trainer.progress import Best
from runner.training.assemble import Assembled
from runner.training.attempt import Attempt, Hooks
from runner.training.resume import valid_best

_MOST_SHOWN_CLASSES = 20
_MOST_LEFT_OUT = 100
_SHOWN_LEFT_OUT = 3


def write_start(folder: RunFolder, config: Config, splits: Splits, dist: DistContext, attempt: Attempt) -> None:
    """Write config, environment, source state and run.json of a new run, before anything can fail."""
    runs = [folder.path, *folders_of_runs(config)]
    git = provenance.git_state(Path.cwd(), without=runs)
    snapshot = take_snapshot(Path.cwd(), without=runs) if config.run.snapshot else None
    _log_source(git, snapshot)
    folder.write("config.yaml", config.to_yaml())
    folder.write("environment.txt", installed.installed_packages())
    if git.patch:
        folder.write("source.patch", git.patch.encode(errors="surrogateescape"))
    if snapshot is not None:
        folder.write(FILE_NAME, snapshot.archive)
    folder.write("classes.json", json.dumps(list(splits.classes), ensure_ascii=False, indent=2) + "\n")
    folder.begin(
        {
            "command": attempt.command,
            "overrides": list(attempt.overrides),
            "repeats": attempt.repeats,
            **config.run.model_dump(mode="json", exclude={"snapshot"}),
            # So that `runs list` needs no other file of a run.
            "experiment": summary_of_experiment(config.model.model_dump(), config.data.model_dump()),
            "data": data_summary(splits),
            "git": {"commit": git.commit, "dirty": git.dirty, **_of_untracked(git)},
            **({} if snapshot is None else {"snapshot": snapshot.facts}),
            "local_packages": installed.local_packages(),
            "world_size": dist.world_size,
            "launcher": dist.mode,
            # With the build, such as +cu132, which package metadata leaves out.
            "versions": installed.versions() | {"torch": str(torch.__version__)},
            "host": installed.host(),
            "device": describe_device(dist.device),
            "class_weights": weights_by_class(splits) if config.data.balance != "none" else None,
        }
    )


def _of_untracked(git: provenance.GitState) -> dict[str, Any]:
    """What run.json says about untracked files, where there are any."""
    facts = {"num_untracked": git.num_untracked, "left_out": list(git.left_out[:_MOST_LEFT_OUT])}
    return {key: value for key, value in facts.items() if value}


def _log_source(git: provenance.GitState, snapshot: Snapshot | None) -> None:
    """Say what run folder lacks of the code."""
    left_out = {"source.patch": git.left_out}
    if snapshot is not None:
        left_out = {FILE_NAME: snapshot.facts["left_out"]}
        LOGGER.info("snapshot    %s, %d files", FILE_NAME, snapshot.facts["num_files"])
    for name, paths in left_out.items():
        if paths:
            shown = "; ".join(map(printable, paths[:_SHOWN_LEFT_OUT]))
            more = f" and {len(paths) - _SHOWN_LEFT_OUT:,} more" if len(paths) > _SHOWN_LEFT_OUT else ""
            LOGGER.info("            %s leaves out %s%s", name, shown, more)


@contextmanager
def recorded_end(folder: RunFolder, splits: Splits, dist: DistContext, hooks: Hooks) -> Iterator[None]:
    """Record in run.json how the run ended, and write the report of a run that completed or failed.

    A kill records nothing, which the lock of the run shows. An attempt that fails before it changes the run leaves
    run.json as it was. A run that is stopped gets no report: there may be no time for it, and the run will be resumed.
    """
    try:
        yield
    except StoppedOnRequest as error:
        LOGGER.warning("%s", error, extra=FILE_ONLY)
        if folder.is_open:
            folder.end("stopped")
        raise
    except BaseException as error:
        name = error.name if isinstance(error, RunnerError) else type(error).__name__
        LOGGER.error("%s", traceback.format_exc(), extra=FILE_ONLY)
        is_open = folder.is_open
        try:
            if is_open:
                folder.end("failed", {"name": name, "message": str(error), "rank": dist.rank})
        except OutputError as second:
            LOGGER.warning("the end of the run could not be recorded: %s", second)
        # Of several processes, the launcher writes the report: it ends this one soon after the failure of another.
        if is_open and dist.world_size == 1 and isinstance(error, Exception):
            hooks.write_report(folder.path, splits)
        raise
    if dist.is_main:
        dist.heartbeat()  # drawing the report takes a while, which the watchdog must not take for a stall
        hooks.write_report(folder.path, splits)


def _checked_best(folder: RunFolder, trainer: Trainer) -> Best:
    """The best checkpoint; where it is damaged, the best of the others, which run.json and `best` then name."""
    progress, store = trainer.state.progress, CheckpointStore(trainer.writer.folder, trainer.config.trainer.keep)
    if progress.best is None:
        raise CheckpointError(f"{store.folder}: no undamaged checkpoint has a known metric; train another epoch")
    best, damaged = valid_best(store, progress.best, progress.epoch)
    if damaged is not None:
        if best is None:
            raise CheckpointError(f"{damaged['problem']}; it was the best, and no other one has a known metric")
        store.put_aside(damaged["checkpoint"])
        store.point("best", best.checkpoint)
        folder.record_damage(damaged, best=summary_of_best(best))
    assert best is not None, "nothing is damaged"
    return best


def package_best(folder: RunFolder, assembled: Assembled) -> Best:
    """Package the best weights: a copy of the file in their checkpoint, once its digest is verified.

    Returns:
        The packaged epoch: where the best checkpoint is damaged, the best of the others.

    Raises:
        CheckpointError: the best checkpoint is damaged, and no other one has a known metric.
    """
    trainer, data = assembled.trainer, assembled.data
    best = _checked_best(folder, trainer)
    checkpoint = trainer.writer.folder / best.checkpoint
    stem = "ema" if best.weights == "ema" else "model"
    card = {
        "architecture": trainer.config.model.model_dump(mode="json"),
        "num_classes": len(trainer.images.classes),
        "classes": list(trainer.images.classes),
        "preprocessing": preprocessing_of(data).model_dump(mode="json"),
        "weights_kind": best.weights,
        "best": {"metric": best.metric, "value": best.value, "epoch": best.epoch},
        "metrics": {},
        "origin": {
            "run": str(folder.path),
            "start": folder.record["start"],
            "git": folder.record["git"],
            "data": trainer.config.data.source,
            "data_fingerprint": trainer.images.fingerprint,
            "versions": folder.record["versions"],
        },
    }
    write_package(folder.model, checkpoint / f"{stem}.safetensors", card)
    return best


def log_start(config: Config, splits: Splits, trainer: Trainer, precision: Precision) -> None:
    """Log model, data, device and schedule before the training starts."""
    dist = trainer.placement.dist
    num_parameters = sum(parameter.numel() for parameter in trainer.state.model.parameters())
    processes = f"{dist.world_size} process" + ("es" if dist.world_size > 1 else "")
    is_scaled = config.optimizer.lr_scaling == "linear"
    LOGGER.info("run folder  %s", trainer.writer.folder.parent)
    for file in config.experiments:
        LOGGER.info("experiment  %s", file)
    LOGGER.info(
        "model       %s, %.1f M parameters, %d classes", config.model.name, num_parameters / 1e6, len(splits.classes)
    )
    LOGGER.info(
        "data        %s: %s training and %s validation images, %s, batch %d × %s",
        config.data.source,
        f"{len(splits.train):,}",
        f"{len(splits.val):,}",
        _described(config.data),
        config.data.fixed_batch_size,
        processes,
    )
    for note in splits.notes:
        LOGGER.info("            %s", note)
    if config.trainer.freeze_backbone_epochs:
        LOGGER.info("learning    %s", _stages(config.trainer))
    if config.data.balance != "none":
        LOGGER.info("balance     %s: %s", config.data.balance, _shown_weights(weights_by_class(splits)))
    LOGGER.info("device      %s", describe_device(dist.device))
    waiting = wait_policy.described()
    if waiting is not None:
        LOGGER.info("threads     %s", waiting)
    LOGGER.info("precision   %s (%s)", precision.name, precision.reason)
    LOGGER.info(
        "schedule    %s, %s of %d steps, peak learning rate %g (%s)",
        config.schedule.name,
        _epochs(config.trainer.epochs),
        trainer.steps_per_epoch,
        peak_learning_rate(config.optimizer, dist.world_size),
        f"{config.optimizer.lr:g} × {processes}" if is_scaled else "not scaled with the number of processes",
    )


def _stages(trainer: TrainerConfig) -> str:
    """What learns at first, and what later."""
    at_once = ["the head", *(rule.pattern for rule in trainer.unfreeze if rule.after_epochs == 0)]
    later = [
        (rule.after_epochs, rule.pattern)
        for rule in sorted(trainer.unfreeze, key=lambda rule: rule.after_epochs)
        if rule.after_epochs > 0
    ]
    later.append((trainer.freeze_backbone_epochs, "everything"))
    return "; ".join([" and ".join(at_once), *(f"after {_epochs(after)} {what}" for after, what in later)])


def _described(data: DataConfig) -> str:
    """The images that the model sees."""
    size = f"{_in_pixels(data.image_size)} px"
    for entry in reversed(data.progressive_resizing):
        size = f"{_in_pixels(entry.image_size)} px for {_epochs(entry.epochs)}, then {size}"
    if data.eval_image_size != data.image_size:
        size += f", {_in_pixels(data.eval_image_size)} px at evaluation"
    channels = "" if data.channels == 3 else f", {data.channels} channel{'' if data.channels == 1 else 's'}"
    return size + channels + (", 16 bits" if data.bit_depth == 16 else "")


def _in_pixels(size: int | tuple[int, int]) -> str:
    return str(size) if isinstance(size, int) else "{} × {}".format(*size)


def _shown_weights(weights: dict[str, float]) -> str:
    """The weight of each class; of many classes only the lowest and the highest."""
    ordered = sorted(weights.items(), key=lambda item: item[1])
    if len(ordered) <= _MOST_SHOWN_CLASSES:
        return ", ".join(f"{name} {weight:.3g}" for name, weight in weights.items())
    low, high = ordered[0], ordered[-1]
    return f"{len(ordered)} classes, from {low[1]:.3g} ({low[0]}) to {high[1]:.3g} ({high[0]}); all of them in run.json"


def log_end(folder: Path, best: Best, num_epochs: int, seconds: float) -> None:
    """Log the result, and how to look at the run and use its model."""
    value = f"{best.value:.4f}" if best.metric == "val_loss" else f"{best.value:.2%}"
    kind = " of the averaged weights (EMA)" if best.weights == "ema" else ""
    LOGGER.info("completed   %s in %.1f seconds", _epochs(num_epochs), seconds)
    LOGGER.info("best        %s = %s%s at epoch %d", best.metric, value, kind, best.epoch)
    LOGGER.info("model       %s", folder / "model")
    LOGGER.info("look at it  tensorboard --logdir %s", shlex.quote(str(folder / "tensorboard")))
    LOGGER.info("use it      runner.load_model(%r)", str(folder))


def _epochs(number: int) -> str:
    return f"{number} epoch{'' if number == 1 else 's'}"


def data_summary(splits: Splits, content: Content | None = None) -> dict[str, Any]:
    """The data set in run.json: its fingerprint, and its numbers of images and classes."""
    return {
        "fingerprint": fingerprint(splits),
        **({"content": content} if content is not None else {}),
        "num_classes": len(splits.classes),
        "num_train": len(splits.train),
        "num_val": len(splits.val),
        "num_test": len(splits.test) if splits.test is not None else 0,
    }
