"""Chooses a batch size by short trainings, as those of `doctor`."""

from __future__ import annotations

from runner.base.console import LOGGER
from runner.base.errors import DeviceError
from runner.config.schema import Config
from runner.config.schema.data import SMALLEST_BATCH_SIZE
from runner.launch.preflight import preflight
from runner.tools.doctor.batch_size import fitting_batch_sizes, with_batch_size
from runner.tools.init.settings import BatchChoice

_FIRST, _LAST = 8, 256
_IMAGES_PER_MEASUREMENT = 64
_FAST_ENOUGH = 0.9


def choose_batch_size(config: Config, most: int) -> BatchChoice:
    """Train a few steps with each of several batch sizes; keeps nothing of it.

    Args:
        config: the experiment, with full paths; its weights play no part.
        most: the largest number of images of a step, over all processes.

    Raises:
        RunnerError: the experiment can't run on this machine.
    """
    model = config.model.model_copy(update={"weights": None})
    ready = preflight(with_batch_size(config.model_copy(update={"model": model}), min(_FIRST, most)))
    num_processes = ready.plan.world_size
    most = min(_LAST, max(SMALLEST_BATCH_SIZE, most // num_processes))
    first = min(_FIRST, most)
    speeds: dict[int, float] = {}
    for batch_size, pace in fitting_batch_sizes(ready, first=first, most=most, num_images=_IMAGES_PER_MEASUREMENT):
        speeds[batch_size] = pace.images_per_second * num_processes
        LOGGER.info("batches of %d: %.3g images/s", batch_size, speeds[batch_size])
    if not speeds:
        raise DeviceError(
            f"out of memory with batches of {first}; smaller ones train slowly: free memory, or write the "
            "project with init.measure=false and choose data.batch_size by hand"
        )
    return BatchChoice(smallest_fast(speeds), speeds)


def smallest_fast(speeds: dict[int, float]) -> int:
    """The smallest batch size that is nearly as fast as the fastest."""
    return min(size for size, speed in speeds.items() if speed >= _FAST_ENOUGH * max(speeds.values()))
