"""One process of a training, from a checked config to a finished run folder."""

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
from runner.trainer.progress import Best
from runner.trainer.recorder import Recorder
from runner.training.assemble import Assembled, assemble
from runner.training.attempt import Attempt, Hooks
from runner.training.device_errors import BEFORE_THE_FIRST_BATCH, batch_too_large, device_errors_named
from runner.training.record import begin, package_best, recorded_end
from runner.training.resumption import find_checkpoint, go_back, precision_of
from runner.training.summary import conclude, facts_of_data, introduce

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
        attempt: how it was asked for.
        hooks: what is called at the end and between epochs.
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
        stack.enter_context(_logged(folder, dist))
        stop = stop or stack.enter_context(StopRequest())
        if dist.is_main and not attempt.is_resumed:
            begin(folder, config, splits, dist, attempt)
        stack.enter_context(recorded_end(folder, splits, dist, hooks))
        return _begun(config, folder, splits, attempt, hooks, dist=dist, stop=stop)


def _begun(
    config: Config,
    folder: RunFolder,
    splits: Splits,
    attempt: Attempt,
    hooks: Hooks,
    *,
    dist: DistContext,
    stop: StopRequest,
) -> RunResult:
    """Train what has a log and a record, from its start or from its newest checkpoint."""
    with ExitStack() as stack:
        content = content_of(splits, config.data.fingerprint, heartbeat=dist.heartbeat) if dist.is_main else {}
        store = CheckpointStore(folder.checkpoints, config.trainer.keep)
        checkpoint = find_checkpoint(splits, content, store, dist=dist, attempt=attempt)
        precision = precision_of(config, dist, checkpoint)
        recording = _recorder(folder, config, _step_of(checkpoint), attempt)
        recorder = stack.enter_context(recording) if dist.is_main else None
        writer = stack.enter_context(CheckpointWriter(store))
        with device_errors_named(dist.device, BEFORE_THE_FIRST_BATCH):
            weights = _starting_weights(checkpoint, attempt)
            pruner = partial(hooks.pruner.decision, folder.path) if hooks.pruner is not None else None
            assembled = assemble(
                config,
                splits,
                writer,
                dist=dist,
                precision=precision,
                stop=stop,
                recorder=recorder,
                pruner=pruner,
                weights=weights,
            )
            introduce(config, splits, assembled.trainer, precision)
            if checkpoint is not None:
                assembled.trainer.restore(checkpoint)
            elif recorder is not None:
                recorder.images(assembled.trainer.images.train_batches.preview(_NUM_SHOWN_IMAGES).images)
        if attempt.is_resumed and dist.is_main:
            go_back(folder, config, store, checkpoint, attempt)
        if dist.is_main:
            folder.update(data=facts_of_data(splits, content))
        checkpoint = None  # its tensors are as large as the model and the optimizer's state
        with device_errors_named(dist.device, _batch_too_large(config)):
            return _run(config, assembled, splits, folder, recorder)


@contextmanager
def _logged(folder: RunFolder, dist: DistContext) -> Iterator[None]:
    """Write the log of this process; the main one holds the run for as long."""
    log = folder.log_file(dist.rank)
    with named_write_errors(log.parent):
        log.parent.mkdir(exist_ok=True)
    with folder.hold() if dist.is_main else nullcontext(), log_to_file(log):
        yield


def _starting_weights(checkpoint: Checkpoint | None, attempt: Attempt) -> StartingWeights:
    """A checkpoint has all values; those that only a saved config names are not downloaded."""
    if checkpoint is not None:
        return "none"
    return "download" if attempt.may_download else "local"


def _run(
    config: Config,
    assembled: Assembled,
    splits: Splits,
    folder: RunFolder,
    recorder: Recorder | None,
) -> RunResult:
    trainer, progress = assembled.trainer, assembled.trainer.state.progress
    started = time.perf_counter()
    trainer.fit()
    if trainer.pruned is not None:
        trainer.writer.wait()
        LOGGER.info("pruned      after epoch %d: %s", progress.epoch, trainer.pruned)
        assert progress.best is not None, "training ends with at least one evaluation"
        if recorder is not None:
            recorder.end(config, progress.best, progress.step)
            folder.end("pruned")
        return RunResult(run_dir=folder.path, best=progress.best, num_epochs=progress.epoch)
    packaged = asdict(_package(assembled, folder)) if recorder is not None else None
    best = Best(**trainer.placement.dist.share_object(packaged))
    trainer.writer.wait()
    # Imported here, because the first step need not wait for it.
    from runner.evaluation.split import summary_of  # noqa: PLC0415
    from runner.training.final import evaluate_best  # noqa: PLC0415

    found = {
        split: summary_of(metrics) for split, metrics in evaluate_best(assembled, best, splits, folder.path).items()
    }
    if recorder is not None:
        recorder.warn(_skipped(assembled))
        add_metrics(folder.model, found)
        folder.update(test=found.get("test"))
        recorder.end(config, best, progress.step)
        folder.end("completed")
        conclude(folder.path, best, progress.epoch, time.perf_counter() - started)
    return RunResult(run_dir=folder.path, best=best, num_epochs=progress.epoch)


def _package(assembled: Assembled, folder: RunFolder) -> Best:
    """Package the best weights; import what measures them while the last checkpoint is still being written."""
    try:
        for name in ("runner.training.final", "runner.evaluation.picture"):
            importlib.import_module(name)
    finally:  # a training that is finished is packaged, whatever can't be imported
        assembled.trainer.writer.wait()
        best = package_best(folder, assembled)
    return best


def _skipped(assembled: Assembled) -> Iterator[str]:
    """A sentence on each split of which images were skipped."""
    yield from assembled.trainer.images.summaries_of_bad()
    if assembled.test is not None and (summary := assembled.test.bad_images.summary()):
        yield summary


def _batch_too_large(config: Config) -> str:
    steps = 2 * config.trainer.accumulate_steps
    advice = f" with trainer.accumulate_steps={steps}, which is nearly the same, or smaller images"
    return batch_too_large("data.batch_size", config.data.batch_size, advice)


def _step_of(checkpoint: Checkpoint | None) -> int:
    return int(checkpoint.state["progress"]["step"]) if checkpoint is not None else 0


@contextmanager
def _recorder(folder: RunFolder, config: Config, step: int, attempt: Attempt) -> Iterator[Recorder]:
    # TensorBoard then hides what an earlier attempt has logged of the steps that are trained again.
    purge_step = step + 1 if attempt.is_resumed else None
    with TensorBoardLog(folder.path / "tensorboard", purge_step) as tensorboard, progress_line() as line:
        yield Recorder(folder, tensorboard, line, config.trainer.epochs)
