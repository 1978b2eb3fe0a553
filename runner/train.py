"""One process of a training, from a checked config to a finished run folder."""

from __future__ import annotations

import json
import time
import traceback
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch

from runner import provenance, report
from runner.assemble import Assembled, assemble
from runner.attempt import Attempt
from runner.checkpoint import Checkpoint, CheckpointStore, verify
from runner.checkpoint_writer import CheckpointWriter
from runner.compose import to_yaml
from runner.console import FILE_ONLY, LOGGER, log_to_file, progress_line
from runner.data.balance import weights_by_class
from runner.data.fingerprint import fingerprint
from runner.data.loader import death_of_loader
from runner.data.splits import Splits
from runner.device import (
    Precision,
    choose_device,
    choose_precision,
    describe_device,
    set_determinism,
)
from runner.dist import DistContext, single_process
from runner.errors import CheckpointError, DeviceError, OutputError, RunnerError, StoppedOnRequest
from runner.evaluation.final import evaluate_best
from runner.evaluation.split import summary_of
from runner.files import named_write_errors
from runner.package import add_metrics, write_package
from runner.run_folder import RunFolder
from runner.runs.find import experiment_of
from runner.schema import Config
from runner.stop import StopRequest
from runner.summary import conclude, facts_of_data, introduce
from runner.sweep.referee import TrialReferee
from runner.tensorboard import TensorBoardLog
from runner.trainer.loop import Trainer
from runner.trainer.progress import Best, Progress
from runner.trainer.recorder import Recorder, summary_of_best
from runner.trainer.state import check_belongs, restore, share_checkpoint

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
    attempt: Attempt,
    *,
    dist: DistContext | None = None,
    stop: StopRequest | None = None,
) -> RunResult:
    """Train, evaluate and package one experiment in this process.

    Args:
        config: complete and checked, with resolved paths.
        run_dir: the run folder; new and empty, or to go on in.
        splits: the data set, inspected.
        attempt: how it was asked for.
        dist: place of this process among others, which all call this; by default it is alone.
        stop: tells that a stop is wanted; by default signals to this process do.

    Raises:
        StoppedOnRequest: after SIGTERM, SIGINT or SIGUSR1, with everything saved.
        RunnerError: the named error that ended the run; recorded in run.json too.
    """
    folder = RunFolder(run_dir)
    dist = dist or single_process(choose_device(config.trainer))
    set_determinism(deterministic=config.trainer.deterministic)
    with ExitStack() as stack:
        with named_write_errors(folder.path / "logs"):
            folder.log_file(dist.rank).parent.mkdir(exist_ok=True)
        if dist.is_main:
            stack.enter_context(folder.hold())
        stack.enter_context(log_to_file(folder.log_file(dist.rank)))
        stop = stop or stack.enter_context(StopRequest())
        if dist.is_main and not attempt.is_resumed:
            _begin(folder, config, splits, dist, attempt)
        stack.enter_context(_recorded_and_explained_end(folder, splits, dist))
        store = CheckpointStore(folder.checkpoints, config.trainer.keep)
        checkpoint = _checkpoint(config, splits, store, dist=dist, attempt=attempt)
        precision = _precision(config, dist, checkpoint)
        recorder = stack.enter_context(_recorder(folder, config, checkpoint, attempt)) if dist.is_main else None
        writer = stack.enter_context(CheckpointWriter(store))
        assembled = assemble(config, splits, writer, dist=dist, precision=precision, stop=stop, recorder=recorder)
        introduce(config, splits, assembled.trainer, precision)
        _prepare(assembled.trainer, checkpoint, attempt, folder)
        if attempt.is_resumed and dist.is_main:
            _go_back(folder, config, store, checkpoint, attempt)
        return _run(config, assembled, splits, folder, recorder)


def _prepare(trainer: Trainer, checkpoint: Checkpoint | None, attempt: Attempt, folder: RunFolder) -> None:
    """Put the trainer where it begins or goes on, under a referee if it is a trial."""
    if attempt.trial_file is not None:
        trainer.referee = TrialReferee(attempt.trial_file, folder.path)
    if checkpoint is not None:
        restore(trainer, checkpoint)
    elif trainer.recorder is not None:
        trainer.recorder.images(trainer.train_batches.preview(_NUM_SHOWN_IMAGES).images)


def _checkpoint(
    config: Config, splits: Splits, store: CheckpointStore, *, dist: DistContext, attempt: Attempt
) -> Checkpoint | None:
    """Where all processes go on; None where it is the start."""
    if not attempt.is_resumed:
        return None
    return share_checkpoint(_go_on(config, splits, store, attempt) if dist.is_main else None, dist)


def _go_on(config: Config, splits: Splits, store: CheckpointStore, attempt: Attempt) -> Checkpoint | None:
    """Find where to go on; changes nothing yet.

    Raises:
        CheckpointError: when there are checkpoints, but none that is whole, or the data set is another.
    """
    for note in attempt.notes:
        LOGGER.info("changed     %s", note)
    checkpoint, damages = store.newest_valid()
    for damage in damages:
        LOGGER.warning("%s; it is put aside", damage)
    if checkpoint is None:
        if damages:
            raise CheckpointError(f"{store.folder}: none of {len(damages)} checkpoints is whole; start a new run")
        return None
    check_belongs(
        checkpoint.state,
        classes=splits.classes,
        data_fingerprint=fingerprint(splits),
        may_change=attempt.may_change_data,
    )
    best = Progress.from_json(checkpoint.state["progress"]).best
    if best is not None:
        verify(store.folder / best.checkpoint)  # better now than after days of training
    return checkpoint


def _go_back(
    folder: RunFolder, config: Config, store: CheckpointStore, checkpoint: Checkpoint | None, attempt: Attempt
) -> None:
    """Put the folder back to the moment of the checkpoint; only once training is sure to go on from it."""
    progress = Progress.from_json(checkpoint.state["progress"]) if checkpoint is not None else Progress()
    folder.cut_metrics(progress.epoch)
    store.go_back_to(checkpoint, progress.best.checkpoint if progress.best is not None else None)
    folder.clean()
    folder.write("config.yaml", to_yaml(config))
    told = {"overrides": list(attempt.overrides), "command": attempt.command}
    folder.reopen(told, best=summary_of_best(progress.best))
    where = f"checkpoint {checkpoint.name}" if checkpoint is not None else "the start: there is no checkpoint"
    LOGGER.info("resumed     attempt %d, from %s", folder.record["attempts"], where)


def _precision(config: Config, dist: DistContext, checkpoint: Checkpoint | None) -> Precision:
    """The number format; a run that goes on keeps that of its beginning, and its number of threads."""
    chosen = choose_precision(config.trainer, dist.device)
    before = checkpoint.state["numerics"] if checkpoint is not None else None
    if before is None or before["device"] != dist.device.type:
        return chosen
    if dist.device.type == "cpu" and before["num_threads"] != torch.get_num_threads():
        LOGGER.info("threads     %d, as in the run so far", before["num_threads"])
        torch.set_num_threads(before["num_threads"])
    if before["torch"] != str(torch.__version__):
        LOGGER.warning("torch %s has become %s: bits may differ from here on", before["torch"], torch.__version__)
    is_free = config.trainer.precision == "auto" and before["precision"] != chosen.name
    return Precision(name=before["precision"], reason="as in the run so far") if is_free else chosen


def _run(
    config: Config,
    assembled: Assembled,
    splits: Splits,
    folder: RunFolder,
    recorder: Recorder | None,
) -> RunResult:
    trainer = assembled.trainer
    started = time.perf_counter()
    _fit(trainer)
    best = trainer.progress.best
    assert best is not None, "training ends with at least one evaluation"
    if trainer.pruned is not None:
        LOGGER.info("pruned      after epoch %d: %s", trainer.progress.epoch, trainer.pruned)
        if recorder is not None:
            recorder.end(config, best, trainer.progress.step)
            folder.end("pruned")
        return RunResult(run_dir=folder.path, best=best, num_epochs=trainer.progress.epoch)
    if recorder is not None:
        package_best(folder, assembled)  # first of all: what follows only measures it
    found = {split: summary_of(metrics) for split, metrics in evaluate_best(assembled, splits, folder.path).items()}
    if recorder is not None:
        recorder.warn(_skipped(assembled))
        add_metrics(folder.model, found)
        folder.update(test=found.get("test"))
        recorder.end(config, best, trainer.progress.step)
        folder.end("completed")
        conclude(folder.path, best, trainer.progress.epoch, time.perf_counter() - started)
    return RunResult(run_dir=folder.path, best=best, num_epochs=trainer.progress.epoch)


def _skipped(assembled: Assembled) -> Iterator[str]:
    """A sentence on each split of which images were skipped."""
    of_test = [assembled.test.bad_images] if assembled.test is not None else []
    for bad_images in (assembled.trainer.bad_train, assembled.trainer.bad_val, *of_test):
        if summary := bad_images.summary():
            yield summary


def _fit(trainer: Trainer) -> None:
    try:
        trainer.fit()
    except RuntimeError as error:  # torch.OutOfMemoryError is one
        dead = death_of_loader(error)
        if dead is not None:
            raise dead from error
        if not isinstance(error, torch.OutOfMemoryError) and "DefaultCPUAllocator" not in str(error):
            raise
        batch_size = trainer.config.data.batch_size
        raise DeviceError(
            f"out of memory on {trainer.dist.device} with data.batch_size = {batch_size}; try "
            f"data.batch_size={max(1, batch_size // 2)} with trainer.accumulate_steps="
            f"{2 * trainer.config.trainer.accumulate_steps}, which is nearly the same, or smaller images: {error}"
        ) from error


def _begin(folder: RunFolder, config: Config, splits: Splits, dist: DistContext, attempt: Attempt) -> None:
    """Write what explains the run, before anything can go wrong."""
    git = provenance.git_state(Path.cwd())
    folder.write("config.yaml", to_yaml(config))
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
            "experiment": experiment_of(config.model.model_dump(), config.data.model_dump()),
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
def _recorded_end(folder: RunFolder, dist: DistContext) -> Iterator[None]:
    """Keep run.json true however the run ends, short of a kill (of which the lock tells).

    An attempt that is refused before it goes on is no part of the run: it leaves run.json as it was.
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
def _recorded_and_explained_end(folder: RunFolder, splits: Splits, dist: DistContext) -> Iterator[None]:
    """Write the report too of a run that has completed or failed; one that is asked to stop must go, and will go on."""
    try:
        with _recorded_end(folder, dist):
            yield
    except StoppedOnRequest:
        raise
    except Exception:
        # Of many processes the others wait for word of it, and end this one soon: their launcher writes the report.
        if folder.is_open and dist.world_size == 1:
            report.explain_end(folder.path, splits)
        raise
    if dist.is_main:
        dist.beat()  # to draw a report is no step, nor is it a stall
        report.explain_end(folder.path, splits)


@contextmanager
def _recorder(folder: RunFolder, config: Config, checkpoint: Checkpoint | None, attempt: Attempt) -> Iterator[Recorder]:
    # TensorBoard then hides what an earlier attempt has logged of the steps that are trained again.
    step = checkpoint.state["progress"]["step"] if checkpoint is not None else 0
    purge_step = step + 1 if attempt.is_resumed else None
    with TensorBoardLog(folder.path / "tensorboard", purge_step) as tensorboard, progress_line() as line:
        yield Recorder(folder, tensorboard, line, config.trainer.epochs)


def package_best(folder: RunFolder, assembled: Assembled) -> None:
    """Package the best weights, from their verified checkpoint, byte for byte.

    Raises:
        CheckpointError: when that checkpoint is damaged.
    """
    trainer, data = assembled.trainer, assembled.data
    best = trainer.progress.best
    assert best is not None, "training ends with at least one evaluation"
    checkpoint = trainer.writer.folder / best.checkpoint
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
        "metrics": {},
        "origin": {
            "run": str(folder.path),
            "start": folder.record["start"],
            "git": folder.record["git"],
            "data": trainer.config.data.source,
            "data_fingerprint": trainer.data_fingerprint,
            "versions": folder.record["versions"],
        },
    }
    write_package(folder.model, checkpoint / f"{stem}.safetensors", card)
