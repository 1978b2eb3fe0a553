"""Short trainings with growing batches; with them, data.batch_size=auto becomes a number."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import replace
from multiprocessing import get_context

import torch

from runner.base import console
from runner.base.console import LOGGER, messages_redirected_to
from runner.base.errors import ConfigError, DeviceError, Problem
from runner.config.schema import Config
from runner.config.schema.data import SMALLEST_BATCH_SIZE
from runner.data.cache.memory import available_memory
from runner.dist.device import choose_device, choose_precision
from runner.launch.preflight import Ready, preflight
from runner.tools.doctor.findings import gigabytes
from runner.tools.doctor.measurements import USABLE_MEMORY, largest_batch
from runner.tools.doctor.short_training import Bench, Pace, train_briefly
from runner.training.device_errors import is_out_of_memory

_FIRST, _LAST = 8, 8192
_FEWEST_STEPS = 20


def settle_batch_size(ready: Ready) -> Ready:
    """Replace data.batch_size=auto by the largest power of two that fits and leaves 20 steps per epoch.

    A process of its own trains briefly, so that this one holds no memory of the device. No files are kept.

    Raises:
        ConfigError: the processes are started elsewhere, or on several machines, which might find different sizes.
        RunnerError: a training of a few steps fails on this machine.
    """
    if ready.config.data.batch_size != "auto":
        return ready
    if ready.plan.mode not in ("inline", "elastic") or ready.plan.num_nodes > 1:
        message = f"is found only where one launcher starts all processes, on one machine ({ready.plan.reason})"
        hint = "doctor data.batch_size=auto dist=default, on one of the machines, finds the number to give here"
        raise ConfigError([Problem(key="data.batch_size", value="auto", has_value=True, message=message, hint=hint)])
    LOGGER.info("batch size  auto: training briefly with growing batches")
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as executor:
        try:
            batch_size = executor.submit(_largest_fitting, ready.config).result()
        except BrokenProcessPool as error:
            raise DeviceError(
                "the process that tried batch sizes died; the usual cause is too little memory: give data.batch_size"
            ) from error
    LOGGER.info("batch size  %d: the run's config.yaml has it", batch_size)
    return replace(ready, config=with_batch_size(ready.config, batch_size))


def with_batch_size(config: Config, batch_size: int) -> Config:
    """The same experiment with this batch size."""
    return config.model_copy(update={"data": config.data.model_copy(update={"batch_size": batch_size})})


def fitting_batch_sizes(ready: Ready, *, first: int, most: int, num_images: int) -> Iterator[tuple[int, Pace]]:
    """Train briefly with ever doubled batches, as long as they fit into memory.

    Args:
        ready: the experiment; its batch size plays no part.
        first: the first batch size, per process.
        most: the largest batch size to try, per process.
        num_images: images of a measurement, so that one odd step does not decide.

    Yields:
        Each batch size that fits, and the pace it was trained at.
    """
    device = choose_device(ready.config.trainer)
    batch_size = first
    while batch_size <= most:
        pace = _pace_of(ready, device, batch_size, max(1, num_images // batch_size))
        if pace is None or _nearly_fills(device, pace):
            return
        yield batch_size, pace
        batch_size *= 2
        # On a GPU a size that does not fit raises; without one, the system would end this process.
        available = available_memory() if device.type == "cpu" else None
        if available is not None and largest_batch(pace, batch_size // 2, available + pace.peak_bytes) < batch_size:
            return


def _largest_fitting(config: Config) -> int:
    """The batch size for a config; carried out in a process of its own."""
    console.set_up()
    alike = {
        "model": config.model.model_copy(update={"weights": None}),
        "trainer": config.trainer.model_copy(update={"compile": False}),  # compiling for each size takes minutes
    }
    ready = preflight(config.model_copy(update=alike))
    num_images = len(ready.splits.train) // (ready.plan.world_size * config.trainer.accumulate_steps)
    most = min(_LAST, max(SMALLEST_BATCH_SIZE, num_images // _FEWEST_STEPS))
    largest = None
    for batch_size, pace in fitting_batch_sizes(ready, first=min(_FIRST, most), most=most, num_images=1):
        LOGGER.info("            %d fits: %s at peak in each process", batch_size, gigabytes(pace.peak_bytes))
        largest = batch_size
    if largest is None:
        raise DeviceError(
            f"out of memory with batches of {min(_FIRST, most)}: take smaller images or a smaller model, or give a "
            "smaller data.batch_size"
        )
    return largest


def _nearly_fills(device: torch.device, pace: Pace) -> bool:
    """Whether this pace leaves too little memory of a GPU for what a short training lacks, such as DDP's buckets."""
    if device.type != "cuda":
        return False
    free, _ = torch.cuda.mem_get_info(device)
    return pace.peak_bytes > USABLE_MEMORY * (free + torch.cuda.memory_reserved(device))


def _pace_of(ready: Ready, device: torch.device, batch_size: int, num_steps: int) -> Pace | None:
    """The pace with this batch size; None where memory runs out."""
    bench = Bench(
        config=with_batch_size(ready.config, batch_size),
        splits=ready.splits,
        device=device,
        precision=choose_precision(ready.config.trainer, device),
        num_processes=ready.plan.procs_per_node,
    )
    try:
        with messages_redirected_to(None, None):  # what a training says of itself is not what was asked for
            return train_briefly(bench, num_steps)
    except RuntimeError as error:
        if not is_out_of_memory(error):
            raise
        return None
