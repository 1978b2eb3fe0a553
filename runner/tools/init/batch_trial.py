"""Chooses a batch size by short trainings, as those of `doctor`."""

from __future__ import annotations

import torch

from runner.base.console import LOGGER, messages_redirected_to
from runner.base.errors import DeviceError
from runner.config.schema import Config
from runner.data.cache.memory import available_memory
from runner.dist.device import choose_device, choose_precision
from runner.launch.preflight import Ready, preflight
from runner.tools.doctor.measurements import largest_batch
from runner.tools.doctor.short_training import Bench, Pace, train_briefly
from runner.tools.init.settings import SMALLEST_BATCH, BatchChoice
from runner.training.device_errors import is_out_of_memory

_FIRST, _LAST = 8, 256
# Of each measured size, so that one odd step does not decide.
_IMAGES_PER_MEASUREMENT = 32
_FAST_ENOUGH = 0.9


def choose_batch_size(config: Config, most: int) -> BatchChoice:
    """Train a few steps with each of several batch sizes; keeps nothing of it.

    Args:
        config: the experiment, with full paths; its weights play no part.
        most: the largest number of images of a step, over all processes.

    Raises:
        RunnerError: the experiment can't run on this machine.
    """
    data = config.data.model_copy(update={"batch_size": min(_FIRST, most)})
    model = config.model.model_copy(update={"weights": None})
    ready = preflight(config.model_copy(update={"data": data, "model": model}))
    device = choose_device(ready.config.trainer)
    num_processes = ready.plan.world_size
    most = max(SMALLEST_BATCH, most // num_processes)
    speeds: dict[int, float] = {}
    batch_size: int | None = min(_FIRST, most)
    while batch_size is not None:
        pace = _pace_of(ready, device, batch_size)
        if pace is None and not speeds:
            raise DeviceError(
                f"out of memory with batches of {batch_size}; smaller ones train slowly: free memory, or write the "
                "project with init.measure=false and choose data.batch_size by hand"
            )
        if pace is not None:
            speeds[batch_size] = pace.images_per_second * num_processes
            LOGGER.info("batches of %d: %.3g images/s", batch_size, speeds[batch_size])
        batch_size = _next(batch_size, most, pace, device)
    return BatchChoice(smallest_fast(speeds), speeds)


def smallest_fast(speeds: dict[int, float]) -> int:
    """The smallest batch size that is nearly as fast as the fastest."""
    return min(size for size, speed in speeds.items() if speed >= _FAST_ENOUGH * max(speeds.values()))


def _next(batch_size: int, most: int, pace: Pace | None, device: torch.device) -> int | None:
    doubled = 2 * batch_size
    if pace is None or doubled > min(most, _LAST):
        return None
    # On a GPU a size that does not fit raises; without one, the system would end this process.
    available = available_memory() if device.type == "cpu" else None
    is_too_large = available is not None and largest_batch(pace, batch_size, available + pace.peak_bytes) < doubled
    return None if is_too_large else doubled


def _pace_of(ready: Ready, device: torch.device, batch_size: int) -> Pace | None:
    """The speed with this batch size; None where memory runs out."""
    config = ready.config
    bench = Bench(
        config=config.model_copy(update={"data": config.data.model_copy(update={"batch_size": batch_size})}),
        splits=ready.splits,
        device=device,
        precision=choose_precision(config.trainer, device),
        num_processes=ready.plan.procs_per_node,
    )
    try:
        with messages_redirected_to(None, None):  # what a training says of itself is not what was asked for
            return train_briefly(bench, max(2, _IMAGES_PER_MEASUREMENT // batch_size))
    except RuntimeError as error:
        if not is_out_of_memory(error):
            raise
        return None
