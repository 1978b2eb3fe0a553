"""A training of a few steps, with the parts of a real one, that leaves no files."""

from __future__ import annotations

import gc
import resource
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch

from runner.base.errors import StoppedOnRequest
from runner.base.process import freed_memory_kept
from runner.base.stop import StopRequest
from runner.config.schema import Config
from runner.data.cache.cache_policy import decide_cache_policy
from runner.data.cache.pixel_cache import CachedSource
from runner.data.source import ImageSource, Subset
from runner.data.sources.synthetic import SyntheticSource
from runner.data.splits import Splits
from runner.dist.collectives import DistContext
from runner.dist.device import Precision, choose_num_threads, set_determinism
from runner.run.checkpoint import CheckpointStore
from runner.run.checkpoint_writer import CheckpointWriter
from runner.trainer.metrics_log import Recorder, StepReport
from runner.trainer.progress import Best
from runner.training.assemble import Assembled, assemble, cached_in_memory

_NUM_EPOCHS = 2  # the first one warms up, the second one is measured
_MOST_HELD_IMAGES = 64
# So small that no loss becomes infinite: the doctor checks the machine, not the learning rate.
_LEARNING_RATE = 1e-9


@dataclass(frozen=True, kw_only=True)
class Bench:
    """Config, data and device of a short training."""

    config: Config
    splits: Splits
    device: torch.device
    precision: Precision
    num_processes: int
    """Training processes that share the cores of this machine in a real run; the short training is one of them."""

    @property
    def step_images(self) -> int:
        """Images of one optimizer step of one process."""
        return self.config.data.fixed_batch_size * self.config.trainer.accumulate_steps


@dataclass(frozen=True, kw_only=True)
class Pace:
    """Speed and memory of a short training after its warm-up, in one process."""

    num_steps: int
    step_seconds: float
    """Mean time of an optimizer step, waiting for data included."""
    data_wait_seconds: float
    """The part of it spent waiting for the next batch."""
    images_per_second: float
    evaluation_images_per_second: float
    first_steps_seconds: float
    """Time of as many steps at the start, when kernels are chosen or compiled."""
    peak_bytes: int
    """Largest memory in use: of the GPU, or on a CPU of the whole training process."""
    static_bytes: int
    """Weights, gradients and optimizer state, which don't depend on the batch size."""
    checkpoint_bytes: int
    model_bytes: int


class _Listener(Recorder):
    """Collects the trainer's reports, and writes nothing."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []
        self.reports: list[StepReport] = []

    def step(self, report: StepReport) -> None:
        """Collect a report; the trainer has waited for the device."""
        self.reports.append(report)

    def epoch(self, row: dict[str, Any], best: Best | None) -> None:
        """Collect the metrics of an epoch."""
        self.rows.append(row)


def train_briefly(bench: Bench, num_steps: int) -> Pace:
    """Train two epochs of this many steps, with an evaluation of as many images and a checkpoint; measure the second.

    Raises:
        StoppedOnRequest: after SIGTERM, SIGINT or SIGUSR1; no files are left.
        RunnerError: what a real run would raise; if memory runs out, torch's own error.
    """
    with _set_up(bench, num_steps) as (assembled, listener):
        if bench.device.type == "cuda":
            gc.collect()  # or an earlier compiled model, which refers to itself, would count
            torch.cuda.reset_peak_memory_stats(bench.device)
        assembled.trainer.fit()
        return _pace(assembled, listener, num_steps)


def load_briefly(bench: Bench, num_steps: int) -> float:
    """Images/s of the loader alone, without training on its batches."""
    with _set_up(bench, num_steps) as (assembled, _):
        batches = assembled.trainer.images.train_batches
        num_batches = num_steps * bench.config.trainer.accumulate_steps
        # Not counted: batches that loader processes made while they started, and with a cache, the epoch that fills it.
        num_first = 1 + 2 * batches.workers + (num_batches if _is_kept(batches.source) else 0)
        with closing(batches.stream(0, 0, 2 + num_first // num_batches)) as stream:
            for _ in islice(stream, num_first):
                pass
            started = time.perf_counter()
            num_images = sum(len(batch.ids) for batch in islice(stream, num_batches))
            return num_images / (time.perf_counter() - started)


def without_data(bench: Bench) -> Bench:
    """The same training on images in memory without transforms, to measure the device alone."""
    num_held = min(bench.step_images, _MOST_HELD_IMAGES)
    with _set_up(bench, 1) as (assembled, _):
        held = assembled.trainer.images.train_batches.preview(num_held).images
    pool = np.ascontiguousarray(held.permute(0, 2, 3, 1).cpu().numpy())
    train, val = (SyntheticSource(pool, source.labels) for source in (bench.splits.train, bench.splits.val))
    plain: dict[str, Any] = {"train_transforms": (), "eval_transforms": (), "workers": 0, "cache": "none"}
    config = bench.config.model_copy(update={"data": bench.config.data.model_copy(update=plain)})
    return replace(bench, config=config, splits=replace(bench.splits, train=train, val=val))


@contextmanager
def _set_up(bench: Bench, num_steps: int) -> Iterator[tuple[Assembled, _Listener]]:
    """Assemble a training in a temporary folder."""
    with freed_memory_kept(), _few_threads(bench), tempfile.TemporaryDirectory(prefix="runner-doctor-") as folder:
        listener, store = _Listener(), CheckpointStore(Path(folder) / "checkpoints", keep=1)
        # Without StopRequest, a signal would end this process and leave the folder.
        with StopRequest() as stop, CheckpointWriter(store) as writer:
            try:
                yield _assembled(bench, num_steps, writer, stop, listener), listener
                stop.raise_if_received()
            except StoppedOnRequest:
                raise StoppedOnRequest(f"stopped on {stop.received}; nothing was kept") from None


def _assembled(
    bench: Bench, num_steps: int, writer: CheckpointWriter, stop: StopRequest, listener: _Listener
) -> Assembled:
    set_determinism(deterministic=bench.config.trainer.deterministic)
    num_images = num_steps * bench.step_images
    dist = DistContext(rank=0, local_rank=0, world_size=1, num_sharing_cores=bench.num_processes, device=bench.device)
    # From the whole splits, as in the real run; the short training uses only some of their images.
    cache_policy = decide_cache_policy(bench.config.data, bench.splits.train, len(bench.splits.val))
    data = cache_policy.applied_to(bench.config.data)
    num_kept = -(-len(bench.splits.val) // bench.num_processes) if cache_policy.evaluation else 0
    train = cached_in_memory(bench.splits.train, data, cache_policy, dist, num_kept, say=lambda _: None)
    splits = replace(bench.splits, train=_spread(train, num_images), val=_spread(bench.splits.val, num_images))
    return assemble(
        _shortened(bench.config.model_copy(update={"data": data}), num_steps),
        splits,
        writer,
        dist=dist,
        precision=bench.precision,
        stop=stop,
        recorder=listener,
        cache_policy=replace(cache_policy, training="none") if cache_policy.training == "memory" else cache_policy,
    )


def _shortened(config: Config, num_steps: int) -> Config:
    """The config of a short training; each epoch reports once, at its end."""
    short = {
        "epochs": max(config.trainer.epochs, _NUM_EPOCHS),
        "max_steps": _NUM_EPOCHS * num_steps,
        "patience": None,
        "print_every": num_steps,
        "checkpoint_every": None,
        "checkpoint_minutes": None,
        "freeze_backbone_epochs": 0,
        "unfreeze": (),
        "keep": 1,
    }
    return config.model_copy(
        update={
            "trainer": config.trainer.model_copy(update=short),
            "optimizer": config.optimizer.model_copy(update={"lr": _LEARNING_RATE}),
            "data": config.data.model_copy(update={"last_batch": "drop"}),
        }
    )


def _is_kept(source: ImageSource) -> bool:
    return isinstance(source, Subset) and isinstance(source.source, CachedSource)


def _spread(source: ImageSource, num_images: int) -> Subset:
    """This many images, evenly from the whole split; repeated if the split has fewer."""
    ids = np.linspace(0, len(source), num_images, endpoint=False).astype(np.int64)
    return Subset(source, ids, source.labels[ids])


def _pace(assembled: Assembled, listener: _Listener, num_steps: int) -> Pace:
    trainer = assembled.trainer
    first, last = listener.reports[0], listener.reports[-1]
    row = listener.rows[-1]
    num_images = int(row["train_images"])
    tensors = trainer.state.tensors()
    model_bytes = sum(tensor.nbytes for tensor in tensors["model"].values())
    is_cuda = trainer.placement.dist.device.type == "cuda"
    return Pace(
        num_steps=num_steps,
        step_seconds=num_images / num_steps / last.images_per_second,
        data_wait_seconds=row["data_wait_seconds"] / num_steps,
        images_per_second=last.images_per_second,
        evaluation_images_per_second=num_images / max(row["evaluation_seconds"], 1e-9),
        first_steps_seconds=num_images / first.images_per_second,
        peak_bytes=torch.cuda.max_memory_allocated() if is_cuda else _peak_of_process(),
        static_bytes=model_bytes + sum(tensor.nbytes for group in tensors.values() for tensor in group.values()),
        checkpoint_bytes=sum(tensor.nbytes for group in tensors.values() for tensor in group.values()),
        model_bytes=model_bytes,
    )


def _peak_of_process() -> int:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024  # KiB but on macOS


@contextmanager
def _few_threads(bench: Bench) -> Iterator[None]:
    """Compute with as many threads as each process of a real run."""
    before = torch.get_num_threads()
    torch.set_num_threads(choose_num_threads(bench.num_processes))
    try:
        yield
    finally:
        torch.set_num_threads(before)
