"""What torch says when a device can't go on or a loader process has died, turned into the error that it is."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from runner.data.loader import death_of_loader
from runner.errors import DeviceError

# Torch's own exception comes of its allocator only.
_SIGNS_OF_TOO_LITTLE_MEMORY = (
    "DefaultCPUAllocator",
    "CUDA error: out of memory",
    "CUDNN_STATUS_ALLOC_FAILED",
    "CUBLAS_STATUS_ALLOC_FAILED",
)
_INDETERMINATE = "does not have a deterministic implementation"


def is_out_of_memory(error: RuntimeError) -> bool:
    """Whether a device, or the machine itself, had too little memory."""
    return isinstance(error, torch.OutOfMemoryError) or any(sign in str(error) for sign in _SIGNS_OF_TOO_LITTLE_MEMORY)


@contextmanager
def device_errors_named(device: torch.device, key: str, batch_size: int, advice: str = "") -> Iterator[None]:
    """Around work on a device.

    Args:
        device: that works.
        key: of the batch size, which decides how much memory it takes.
        batch_size: its value.
        advice: what to try along with half of it.

    Raises:
        DeviceError: memory has run out, or a loader process died, wherever that was noticed; or trainer.deterministic
            asks for what the device does not have.
    """
    try:
        yield
    except RuntimeError as error:
        dead = death_of_loader(error)
        if dead is not None:
            raise dead from error
        if _INDETERMINATE in str(error):
            operation = str(error).partition(_INDETERMINATE)[0].strip()
            raise DeviceError(
                f"trainer.deterministic = true: {operation} gives other bits each time on {device.type}, and there is "
                "no other way to compute it; take another model, or trainer.deterministic=false"
            ) from error
        if not is_out_of_memory(error):
            raise
        half = max(1, batch_size // 2)
        raise DeviceError(
            f"out of memory on {device} with {key} = {batch_size}; try {key}={half}{advice}: {error}"
        ) from error
