"""One training in this process, timed from outside: `python benchmarks/loop.py runner|bare|saving OVERRIDES…`.

Both sides take model, data, optimizer and number format from `runner.training.assemble`. `runner` is `Trainer.fit` with
TensorBoard, metrics and checkpoints; `bare` is the shortest loop that one would write over the same parts, `saving` the
same with a torch.save of model and optimizer after each epoch, which is part of its time. Prints figures as JSON; the
first epoch, in which things warm up, does not count for images/s.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from itertools import islice
from pathlib import Path
from unittest import mock

import torch
from torch.nn import functional

import runner
from runner.base import console
from runner.base.console import progress_line
from runner.base.process import freed_memory_kept
from runner.base.stop import StopRequest
from runner.data.loader.batch import Batch
from runner.dist.collectives import single_process
from runner.dist.device import choose_device, choose_precision, set_determinism
from runner.launch.preflight import Ready, preflight
from runner.run.checkpoint import CheckpointStore
from runner.run.checkpoint_writer import CheckpointWriter
from runner.run.run_folder import RunFolder
from runner.run.tensorboard import TensorBoardLog
from runner.trainer.loop import Trainer
from runner.trainer.metrics_log import Recorder
from runner.training.assemble import assemble


def main() -> None:
    side, *overrides = sys.argv[1:]
    print(json.dumps(measured_here(side, overrides)))


def measured_here(side: str, overrides: list[str]) -> dict[str, float]:
    """The figures of one side, in this process."""
    console.set_up()  # what the runner says is part of what it costs
    ready = preflight(runner.load_config(overrides))
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack, freed_memory_kept():
        trainer = build(ready, RunFolder(Path(folder)), stack)
        if side == "runner":
            return run_runner(trainer, Path(folder) / "metrics.jsonl")
        return run_bare(trainer, Path(folder) / "checkpoint.pt" if side == "saving" else None)


def build(ready: Ready, folder: RunFolder, stack: ExitStack) -> Trainer:
    """The trainer of one process, as :mod:`runner.training.train` puts it together."""
    config = ready.config
    device = choose_device(config.trainer)
    set_determinism(deterministic=config.trainer.deterministic)
    folder.begin({})
    tensorboard = stack.enter_context(TensorBoardLog(folder.path / "tensorboard"))
    line = stack.enter_context(progress_line())
    writer = stack.enter_context(CheckpointWriter(CheckpointStore(folder.checkpoints, config.trainer.keep)))
    return assemble(
        config,
        ready.splits,
        writer,
        dist=single_process(device),
        precision=choose_precision(config.trainer, device),
        stop=StopRequest(),
        recorder=Recorder(folder, tensorboard, line, config.trainer.epochs, has_top5=True),
    ).trainer


def run_runner(trainer: Trainer, metrics_file: Path) -> dict[str, float]:
    """Images/s of the epochs' steps, and what of the whole lies outside of steps and evaluation."""
    seconds: list[float] = []
    train_epoch = trainer._train_epoch

    def clocked(stream: Iterator[Batch]) -> None:
        started = time.perf_counter()
        train_epoch(stream)
        synchronize(trainer)
        seconds.append(time.perf_counter() - started)

    started = time.perf_counter()
    with mock.patch.object(trainer, "_train_epoch", clocked):
        trainer.fit()
        trainer.writer.wait()
    whole = time.perf_counter() - started
    rows = [json.loads(line) for line in metrics_file.read_text().splitlines()]
    evaluation = sum(row["evaluation_seconds"] for row in rows)
    num_val = len(trainer.images.val_batches._source)
    warm = rows[1:]
    evaluating, in_epochs = (sum(row[key] for row in warm) for key in ("evaluation_seconds", "epoch_seconds"))
    num_images = sum(row["train_images"] for row in warm)
    return {
        "images_per_second": num_images / sum(seconds[1:]),
        "data_wait_ms": 1000 * sum(row["data_wait_seconds"] for row in warm) / num_images,
        "images_per_second_and_saving": num_images / (in_epochs - evaluating),
        "epoch_images_per_second": num_images / in_epochs,
        "evaluation_images_per_second": num_val * len(warm) / evaluating,
        "outside_fraction": 1 - (sum(seconds) + evaluation) / whole,
        "whole_seconds": whole,
    }


def run_bare(trainer: Trainer, checkpoint: Path | None) -> dict[str, float]:
    """Images/s of the shortest loop over the same parts; with this file written after each epoch, if there is one."""
    placement, images_of, state = trainer.placement, trainer.images, trainer.state
    device, model, optimizer = placement.dist.device, state.model.train(), state.optimizer
    epochs, steps = trainer.config.trainer.epochs, trainer.steps_per_epoch
    seconds, counts = [], []
    with closing(images_of.train_batches.stream(0, 0, epochs)) as stream:
        for _ in range(epochs):
            started, count = time.perf_counter(), 0
            for batch in islice(stream, steps):
                images = batch.images.to(device, non_blocking=True, memory_format=placement.memory_format)
                labels = batch.labels.to(device, non_blocking=True)
                with placement.precision.autocast(device.type):
                    loss = functional.cross_entropy(model(images_of.normalizer(images)), labels)
                loss.backward()  # type: ignore[no-untyped-call]
                optimizer.step()
                optimizer.zero_grad(set_to_none=True)
                count += len(labels)
            synchronize(trainer)
            if checkpoint is not None:
                torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, checkpoint)
            seconds.append(time.perf_counter() - started)
            counts.append(count)
    return {"images_per_second": sum(counts[1:]) / sum(seconds[1:])}


def synchronize(trainer: Trainer) -> None:
    if trainer.placement.dist.device.type == "cuda":
        torch.cuda.synchronize()


if __name__ == "__main__":
    main()
