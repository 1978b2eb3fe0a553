"""A training in one process, from a checked config to a completed run folder."""

from __future__ import annotations

import importlib
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

from runner.base.console import LOGGER, log_to_file, progress_line
from runner.base.files import named_write_errors
from runner.base.stop import StopRequest
from runner.config.schema import Config
from runner.config.schema.trainer import can_miss_top5
from runner.data.fingerprint import content_of
from runner.data.splits import Splits
from runner.dist.collectives import DistContext, single_process
from runner.dist.device import choose_device, set_determinism
from runner.model import StartingWeights
from runner.run.checkpoint import Checkpoint, CheckpointStore
from runner.run.checkpoint_writer import CheckpointWriter
from runner.run.package import add_metrics
from runner.run.run_folder import RunFolder
from runner.run.tensorboard import TensorBoardLog
from runner.run.tracking.beside import with_trackers
from runner.trainer.metrics_log import Recorder
from runner.trainer.progress import Best
from runner.training.assemble import Assembled, assemble
from runner.training.attempt import Attempt, Hooks
from runner.training.device_errors import BEFORE_THE_FIRST_BATCH, batch_size_advice, named_device_errors
from runner.training.range_test import run_range_test
from runner.training.resume import find_checkpoint, resumed_precision, rewind_folder
from runner.training.run_record import data_summary, log_end, log_start, package_best, recorded_end, write_start
from runner.training.teacher import recorded_teacher

_NUM_SHOWN_IMAGES = 32  # augmented training images in TensorBoard


@dataclass(frozen=True, kw_only=True)
class RunResult:
    """Result of a run that was completed or pruned."""

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
    hooks: Hooks,
    *,
    dist: DistContext | None = None,
    stop: StopRequest | None = None,
) -> RunResult:
    """Train, evaluate and package one experiment in this process.

    Args:
        config: complete and checked, with resolved paths.
        run_dir: the run folder; new and empty, or that of a run to continue.
        splits: the data set, inspected.
        attempt: how the training was started.
        hooks: called between epochs and at the end.
        dist: rank and process group, where several processes call this; by default this process trains alone.
        stop: tells whether to stop; by default signals to this process do.

    Raises:
        StoppedOnRequest: after SIGTERM, SIGINT or SIGUSR1, with everything saved.
        RunnerError: the named error that ended the run; run.json has it too.
    """
    folder = RunFolder(run_dir)
    dist = dist or single_process(choose_device(config.trainer))
    set_determinism(deterministic=config.trainer.deterministic)
    with ExitStack() as stack:
        stack.enter_context(_logged(folder, dist))
        stop = stop or stack.enter_context(StopRequest())
        if dist.is_main and not attempt.is_resumed:
            write_start(folder, config, splits, dist, attempt)
        if dist.is_main:
            stack.enter_context(with_trackers(folder.path, config.tracker))
        stack.enter_context(recorded_end(folder, splits, dist, hooks))
        assembled = _set_up(config, folder, splits, attempt, hooks=hooks, stack=stack, dist=dist, stop=stop)
        stack.enter_context(named_device_errors(dist.device, _advice_for_batches(config)))
        if config.trainer.find_lr and not attempt.is_resumed:
            run_range_test(assembled.trainer, folder)
        started = time.perf_counter()
        assembled.trainer.fit()
        return _finish(config, assembled, splits, folder, started)


@contextmanager
def _logged(folder: RunFolder, dist: DistContext) -> Iterator[None]:
    """Write the log of this process; the main process also locks the run folder."""
    log = folder.log_file(dist.rank)
    with named_write_errors(log.parent):
        log.parent.mkdir(exist_ok=True)
    with folder.hold() if dist.is_main else nullcontext(), log_to_file(log):
        yield


def _set_up(
    config: Config,
    folder: RunFolder,
    splits: Splits,
    attempt: Attempt,
    *,
    hooks: Hooks,
    stack: ExitStack,
    dist: DistContext,
    stop: StopRequest,
) -> Assembled:
    """Assemble a training at its start, or at the newest checkpoint of a run that is resumed.

    On `stack`, TensorBoard, the progress line and the writer of checkpoints stay open for the training.
    """
    content = content_of(splits, config.data.fingerprint, heartbeat=dist.heartbeat) if dist.is_main else {}
    store = CheckpointStore(folder.checkpoints, config.trainer.keep)
    checkpoint = find_checkpoint(splits, content, store, dist=dist, attempt=attempt)
    precision = resumed_precision(config, dist, checkpoint)
    teacher = recorded_teacher(config, folder) if dist.is_main else None
    recorder = None
    if dist.is_main:
        num_classes = len(splits.classes)
        recorder = _recorder(folder, config, checkpoint, attempt, stack, num_classes=num_classes, hooks=hooks)
    writer = stack.enter_context(CheckpointWriter(store))
    weights: StartingWeights = "none" if checkpoint is not None else "download" if attempt.may_download else "local"
    with named_device_errors(dist.device, BEFORE_THE_FIRST_BATCH):
        assembled = assemble(
            config,
            splits,
            writer,
            dist=dist,
            precision=precision,
            stop=stop,
            recorder=recorder,
            pruner=partial(hooks.pruner.decision, folder.path) if hooks.pruner is not None else None,
            weights=weights,
        )
        log_start(config, splits, assembled.trainer, precision)
        if checkpoint is not None:
            assembled.trainer.restore(checkpoint)
        elif recorder is not None:
            recorder.images(assembled.trainer.images.train_batches.preview(_NUM_SHOWN_IMAGES).images)
    if dist.is_main:
        if attempt.is_resumed:
            rewind_folder(folder, config, store, checkpoint, attempt)
        folder.update(data=data_summary(splits, content), teacher=teacher)
    return assembled


def _recorder(
    folder: RunFolder,
    config: Config,
    checkpoint: Checkpoint | None,
    attempt: Attempt,
    stack: ExitStack,
    *,
    num_classes: int,
    hooks: Hooks,
) -> Recorder:
    step = int(checkpoint.state["progress"]["step"]) if checkpoint is not None else 0
    # TensorBoard then hides what an earlier attempt logged of the steps that are trained again.
    purge_step = step + 1 if attempt.is_resumed else None
    return Recorder(
        folder,
        stack.enter_context(TensorBoardLog(folder.path / "tensorboard", purge_step)),
        stack.enter_context(progress_line()),
        config.trainer.epochs,
        has_top5=can_miss_top5(num_classes),
        after_epoch=hooks.after_epoch,
    )


def _finish(config: Config, assembled: Assembled, splits: Splits, folder: RunFolder, started: float) -> RunResult:
    """Package and evaluate the best weights, unless the run was pruned, and record how it ended."""
    trainer, progress = assembled.trainer, assembled.trainer.state.progress
    if trainer.pruned is not None:
        trainer.writer.wait()
        LOGGER.info("pruned      after epoch %d: %s", progress.epoch, trainer.pruned)
        assert progress.best is not None, "training ends with at least one evaluation"
        if trainer.recorder is not None:
            trainer.recorder.end(config, progress.best, progress.step)
            folder.end("pruned")
        return RunResult(run_dir=folder.path, best=progress.best, num_epochs=progress.epoch)
    packaged = asdict(_package(assembled, folder)) if trainer.recorder is not None else None
    best = Best(**trainer.placement.dist.broadcast_object(packaged))
    trainer.writer.wait()
    # Imported here, because the first step need not wait for it.
    from runner.evaluation.measures import summary_of  # noqa: PLC0415
    from runner.training.final import evaluate_best  # noqa: PLC0415

    evaluated = evaluate_best(assembled, best, splits, folder.path)
    summaries = {split: summary_of(metrics) for split, metrics in evaluated.items()}
    if trainer.recorder is not None:
        test_summary = assembled.test.bad_images.summary() if assembled.test is not None else None
        trainer.recorder.warn([*trainer.images.bad_image_summaries(), *filter(None, [test_summary])])
        add_metrics(folder.model, summaries, evaluated["val"]["profile"])
        folder.update(test=summaries.get("test"))
        trainer.recorder.end(config, best, progress.step)
        folder.end("completed")
        log_end(folder.path, best, progress.epoch, time.perf_counter() - started)
    return RunResult(run_dir=folder.path, best=best, num_epochs=progress.epoch)


def _package(assembled: Assembled, folder: RunFolder) -> Best:
    """Package the best weights; meanwhile the last checkpoint is being written, import what evaluates them."""
    try:
        for name in ("runner.training.final", "runner.evaluation.drawing"):
            importlib.import_module(name)
    finally:  # a finished training is packaged even if an import fails
        assembled.trainer.writer.wait()
        best = package_best(folder, assembled)
    return best


def _advice_for_batches(config: Config) -> str:
    steps = 2 * config.trainer.accumulate_steps
    advice = f" with trainer.accumulate_steps={steps}, which is nearly the same, or smaller images"
    return batch_size_advice("data.batch_size", config.data.fixed_batch_size, advice)
