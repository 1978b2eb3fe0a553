"""What one training writes down of itself, whatever happens: its beginning, its packaged model, its end."""

from __future__ import annotations

import json
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from runner.base.console import FILE_ONLY, LOGGER
from runner.base.errors import CheckpointError, OutputError, RunnerError, StoppedOnRequest
from runner.config.schema import Config
from runner.data.loader.balance import weights_by_class
from runner.data.splits import Splits
from runner.dist.collectives import DistContext
from runner.dist.device import describe_device
from runner.run import provenance
from runner.run.checkpoint import CheckpointStore
from runner.run.package import write_package
from runner.run.run_folder import RunFolder, summary_of_experiment
from runner.trainer.loop import Trainer
from runner.trainer.progress import Best
from runner.trainer.recorder import summary_of_best
from runner.training.assemble import Assembled
from runner.training.attempt import Attempt, Hooks
from runner.training.best_left import whole_best
from runner.training.summary import facts_of_data


def begin(folder: RunFolder, config: Config, splits: Splits, dist: DistContext, attempt: Attempt) -> None:
    """Write what explains the run, before anything can go wrong."""
    git = provenance.git_state(Path.cwd())
    folder.write("config.yaml", config.to_yaml())
    folder.write("environment.txt", provenance.installed_packages())
    if git.patch:
        folder.write("source.patch", git.patch.encode(errors="surrogateescape"))
    folder.write("classes.json", json.dumps(list(splits.classes), ensure_ascii=False, indent=2) + "\n")
    folder.begin(
        {
            "command": attempt.command,
            "overrides": list(attempt.overrides),
            "repeats": attempt.repeats,
            # So that a list of thousands of runs needs no other file.
            "experiment": summary_of_experiment(config.model.model_dump(), config.data.model_dump()),
            "data": facts_of_data(splits),
            "git": {"commit": git.commit, "dirty": git.dirty},
            "world_size": dist.world_size,
            "launcher": dist.mode,
            # With the build, such as +cu132, which the package metadata lacks.
            "versions": provenance.versions() | {"torch": str(torch.__version__)},
            "host": provenance.host(),
            "device": describe_device(dist.device),
            "class_weights": weights_by_class(splits) if config.data.balance != "none" else None,
        }
    )


@contextmanager
def _written_end(folder: RunFolder, dist: DistContext) -> Iterator[None]:
    """Keep run.json true however the run ends, short of a kill (of which the lock tells).

    An attempt that fails before it continues the run is no part of it: it leaves run.json as it was.
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
        try:
            if folder.is_open:
                folder.end("failed", {"name": name, "message": str(error), "rank": dist.rank})
        except OutputError as second:
            LOGGER.warning("the end of the run could not be recorded: %s", second)
        raise


@contextmanager
def recorded_end(folder: RunFolder, splits: Splits, dist: DistContext, hooks: Hooks) -> Iterator[None]:
    """Keep run.json true however the run ends, and write the report of one that has completed or failed.

    A run that is asked to stop gets none: there may be no time for it, and the run will be continued.
    """
    try:
        with _written_end(folder, dist):
            yield
    except StoppedOnRequest:
        raise
    except Exception:
        # Of many processes the others wait for word of it, and end this one soon: their launcher writes the report.
        if folder.is_open and dist.world_size == 1:
            hooks.write_report(folder.path, splits)
        raise
    if dist.is_main:
        dist.heartbeat()  # to draw a report is no step, nor is it a stall
        hooks.write_report(folder.path, splits)


def _whole_best(folder: RunFolder, trainer: Trainer) -> Best:
    """The best checkpoint, or what takes its place; run.json and the pointer know of it then."""
    progress, store = trainer.state.progress, CheckpointStore(trainer.writer.folder, trainer.config.trainer.keep)
    if progress.best is None:
        raise CheckpointError(f"{store.folder}: no whole checkpoint is known to be good; train another epoch")
    best, damaged = whole_best(store, progress.best, progress.epoch)
    if damaged is not None:
        if best is None:
            raise CheckpointError(f"{damaged['problem']}; it was the best, and nothing is known of the others")
        store.put_aside(damaged["checkpoint"])
        store.point("best", best.checkpoint)
        folder.tell_damage(damaged, best=summary_of_best(best))
    assert best is not None, "nothing is damaged"
    return best


def package_best(folder: RunFolder, assembled: Assembled) -> Best:
    """Package the best weights, from their verified checkpoint, byte for byte.

    Returns:
        What was packaged: where the best checkpoint is damaged, the best of those that are left.

    Raises:
        CheckpointError: when that checkpoint is damaged, and no other is known to be good.
    """
    trainer, data = assembled.trainer, assembled.data
    best = _whole_best(folder, trainer)
    checkpoint = trainer.writer.folder / best.checkpoint
    stem = "ema" if best.weights == "ema" else "model"
    card = {
        "architecture": trainer.config.model.model_dump(mode="json"),
        "num_classes": len(trainer.images.classes),
        "classes": list(trainer.images.classes),
        "preprocessing": {
            "image_size": data.image_size,
            "transforms": [transform.model_dump(mode="json") for transform in data.eval_transforms],
            "normalize": data.normalize.model_dump(mode="json"),
        },
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
