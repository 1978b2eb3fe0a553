"""What torch says when memory has run out or a loader process has died, turned into the error that it is."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from runner.data.loader import death_of_loader
from runner.errors import DeviceError


def is_out_of_memory(error: RuntimeError) -> bool:
    """Whether a device, or the machine itself, had too little memory."""
    return isinstance(error, torch.OutOfMemoryError) or "DefaultCPUAllocator" in str(error)


@contextmanager
def shortages_named(device: torch.device, *, setting: str, advice: str) -> Iterator[None]:
    """Around work on a device.

    Args:
        device: that works.
        setting: what decides how much memory it takes, such as `data.batch_size = 64`.
        advice: what to try instead.

    Raises:
        DeviceError: memory has run out, or a loader process died, wherever that was noticed.
    """
    try:
        yield
    except RuntimeError as error:
        dead = death_of_loader(error)
        if dead is not None:
            raise dead from error
        if not is_out_of_memory(error):
            raise
        raise DeviceError(f"out of memory on {device} with {setting}; try {advice}: {error}") from error
