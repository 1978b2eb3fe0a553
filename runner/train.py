"""One process of a training, from a checked config to a finished run folder."""

from __future__ import annotations

import json
import shlex
import sys
import time
import traceback
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch

from runner import provenance
from runner.assemble import Assembled, assemble
from runner.checkpoint import verify
from runner.compose import to_yaml
from runner.console import FILE_ONLY, LOGGER, log_to_file, progress_line
from runner.data.splits import Splits
from runner.device import (
    Precision,
    choose_device,
    choose_precision,
    describe_device,
    set_determinism,
)
from runner.dist import DistContext, single_process
from runner.errors import RunnerError, StoppedOnRequest
from runner.package import write_package
from runner.run_folder import RunFolder
from runner.schema import Config
from runner.stop import StopRequest
from runner.tensorboard import TensorBoardLog
from runner.trainer.progress import Best
from runner.trainer.recorder import Recorder

_NUM_SHOWN_IMAGES = 32  # augmented training images in TensorBoard


@dataclass(frozen=True, kw_only=True)
class RunResult:
    """How a completed run ended."""

    run_dir: Path
    best: Best
    """The best epoch by trainer.monitor."""
    num_epochs: int
    """Epochs that were trained and evaluated."""


def train(
    config: Config,
    run_dir: Path,
    splits: Splits,
    overrides: tuple[str, ...] = (),
    *,
    dist: DistContext | None = None,
    stop: StopRequest | None = None,
    command: str | None = None,
) -> RunResult:
    """Train, evaluate and package one experiment in this process.

    Args:
        config: complete and checked, with resolved paths.
        run_dir: the new, empty run folder.
        splits: the data set, inspected.
        overrides: what was typed, for the record.
        dist: place of this process among others, which all call this; by default it is alone.
        stop: tells that a stop is wanted; by default signals to this process do.
        command: the whole command line, for the record; by default that of this process.

    Raises:
        StoppedOnRequest: after SIGTERM, SIGINT or SIGUSR1, with everything saved.
        RunnerError: the named error that ended the run; recorded in run.json too.
    """
    folder = RunFolder(run_dir)
    dist = dist or single_process(choose_device(config.trainer))
    precision = choose_precision(config.trainer, dist.device)
    set_determinism(deterministic=config.trainer.deterministic)
    with ExitStack() as stack:
        folder.log_file(dist.rank).parent.mkdir(exist_ok=True)
        if dist.is_main:
            stack.enter_context(folder.hold())
        stack.enter_context(log_to_file(folder.log_file(dist.rank)))
        stop = stop or stack.enter_context(StopRequest())
        if dist.is_main:
            _describe(folder, config, splits, dist, overrides, command=command or shlex.join(sys.orig_argv))
        stack.enter_context(_recorded_end(folder, dist))
        recorder = stack.enter_context(_recorder(folder, config)) if dist.is_main else None
        assembled = assemble(config, splits, folder, dist=dist, precision=precision, stop=stop, recorder=recorder)
        _introduce(config, splits, assembled, dist, precision)
        if recorder is not None:
            recorder.images(assembled.trainer.train_batches.preview(_NUM_SHOWN_IMAGES).images)
        return _run(config, assembled, folder, recorder)


def _run(config: Config, assembled: Assembled, folder: RunFolder, recorder: Recorder | None) -> RunResult:
    trainer = assembled.trainer
    started = time.perf_counter()
    trainer.fit()
    best = trainer.progress.best
    assert best is not None, "training ends with at least one evaluation"
    result = RunResult(run_dir=folder.path, best=best, num_epochs=trainer.progress.epoch)
    if recorder is None:
        return result
    package_best(folder, assembled)
    recorder.end(config, best, trainer.progress.step)
    folder.end("completed")
    _conclude(result, time.perf_counter() - started)
    return result


def _describe(
    folder: RunFolder, config: Config, splits: Splits, dist: DistContext, overrides: tuple[str, ...], *, command: str
) -> None:
    """Write what explains the run, before anything can go wrong."""
    git = provenance.git_state(Path.cwd())
    folder.write("config.yaml", to_yaml(config))
    folder.write("environment.txt", provenance.installed_packages())
    if git.patch:
        folder.write("source.patch", git.patch.encode(errors="surrogateescape"))
    folder.write("classes.json", json.dumps(list(splits.classes), ensure_ascii=False, indent=2) + "\n")
    folder.begin(
        {
            "command": command,
            "overrides": list(overrides),
            "git": {"commit": git.commit, "dirty": git.dirty},
            "world_size": dist.world_size,
            "launcher": dist.mode,
            # With the build, such as +cu132, which the package metadata lacks.
            "versions": provenance.versions() | {"torch": str(torch.__version__)},
            "host": provenance.host(),
            "device": describe_device(dist.device),
        }
    )


@contextmanager
def _recorded_end(folder: RunFolder, dist: DistContext) -> Iterator[None]:
    """Keep run.json true however the run ends, short of a kill (of which the lock tells)."""
    try:
        yield
    except StoppedOnRequest as error:
        LOGGER.warning("%s", error)
        if dist.is_main:
            folder.end("stopped")
        raise
    except BaseException as error:
        name = error.name if isinstance(error, RunnerError) else type(error).__name__
        LOGGER.error("%s", traceback.format_exc(), extra=FILE_ONLY)
        if dist.is_main:
            folder.end("failed", {"name": name, "message": str(error), "rank": dist.rank})
        raise


@contextmanager
def _recorder(folder: RunFolder, config: Config) -> Iterator[Recorder]:
    with TensorBoardLog(folder.path / "tensorboard") as tensorboard, progress_line() as line:
        yield Recorder(folder, tensorboard, line, config.trainer.epochs)


def _introduce(config: Config, splits: Splits, assembled: Assembled, dist: DistContext, precision: Precision) -> None:
    trainer = assembled.trainer
    num_parameters = sum(parameter.numel() for parameter in trainer.model.parameters())
    processes = f"{dist.world_size} process" + ("es" if dist.world_size > 1 else "")
    is_scaled = config.optimizer.lr_scaling == "linear"
    LOGGER.info("run folder  %s", trainer.checkpoints.folder.parent)
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
    LOGGER.info("device      %s", describe_device(dist.device))
    LOGGER.info("precision   %s (%s)", precision.name, precision.reason)
    LOGGER.info(
        "schedule    %s, %d epochs of %d steps, peak learning rate %g (%s)",
        config.schedule.name,
        config.trainer.epochs,
        trainer.steps_per_epoch,
        trainer.peak,
        f"{config.optimizer.lr:g} × {processes}" if is_scaled else "not scaled with the number of processes",
    )


def package_best(folder: RunFolder, assembled: Assembled) -> None:
    """Package the best weights, from their verified checkpoint, byte for byte.

    Raises:
        CheckpointError: when that checkpoint is damaged.
    """
    trainer, data = assembled.trainer, assembled.data
    best = trainer.progress.best
    assert best is not None, "training ends with at least one evaluation"
    checkpoint = trainer.checkpoints.folder / best.checkpoint
    verify(checkpoint)
    stem = "ema" if best.weights == "ema" else "model"
    card = {
        "architecture": trainer.config.model.model_dump(mode="json"),
        "num_classes": len(trainer.classes),
        "classes": list(trainer.classes),
        "preprocessing": {
            "image_size": data.image_size,
            "transforms": [transform.model_dump(mode="json") for transform in data.eval_transforms],
            "normalize": data.normalize.model_dump(mode="json"),
        },
        "weights_kind": best.weights,
        "best": {"metric": best.metric, "value": best.value, "epoch": best.epoch},
    }
    write_package(folder.model, checkpoint / f"{stem}.safetensors", card)


def _conclude(result: RunResult, seconds: float) -> None:
    best, folder = result.best, result.run_dir
    value = f"{best.value:.4f}" if best.metric == "val_loss" else f"{best.value:.2%}"
    kind = " of the averaged weights (EMA)" if best.weights == "ema" else ""
    LOGGER.info("completed   %d epochs in %.1f seconds", result.num_epochs, seconds)
    LOGGER.info("best        %s = %s%s at epoch %d", best.metric, value, kind, best.epoch)
    LOGGER.info("model       %s", folder / "model")
    LOGGER.info("look at it  tensorboard --logdir %s", shlex.quote(str(folder / "tensorboard")))
    LOGGER.info("use it      runner.load_model(%r)", str(folder))
