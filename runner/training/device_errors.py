"""What torch says when a device fails or a loader process has died, turned into the error that it is."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from runner.base.errors import DeviceError
from runner.data.loader.loader import death_of_loader

# Torch's own exception comes of its allocator only; these are its words for the CPU's, and those of CUDA, HIP, MPS and
# NCCL, of cuBLAS, and of cuDNN.
_SIGNS_OF_TOO_LITTLE_MEMORY = ("DefaultCPUAllocator", "out of memory", "STATUS_ALLOC_FAILED", "_ALLOCATION_FAILED")
_INDETERMINATE = " does not have a deterministic implementation"
BEFORE_THE_FIRST_BATCH = (
    "before the first batch; try a smaller model, data.cache=none, or a device that nobody else uses"
)
"""What to try where batches have no part in a shortage of memory."""


def is_out_of_memory(error: RuntimeError) -> bool:
    """Whether a device, or the machine itself, had too little memory."""
    return isinstance(error, torch.OutOfMemoryError) or any(sign in str(error) for sign in _SIGNS_OF_TOO_LITTLE_MEMORY)


def indeterminate(error: RuntimeError, device: torch.device) -> DeviceError | None:
    """The named error where trainer.deterministic asks for what the device does not have; None of any other."""
    operation, sign, _ = str(error).partition(_INDETERMINATE)
    if not sign:
        return None
    return DeviceError(
        f"trainer.deterministic = true: {operation} gives other bits each time on {device.type}, and there is no other "
        "way to compute it; take another model, or trainer.deterministic=false"
    )


def batch_too_large(key: str, batch_size: int, more: str = "") -> str:
    """What to try where the memory that runs out is that of batches.

    Args:
        key: of the batch size.
        batch_size: its value.
        more: what to try along with half of it.
    """
    return f"with {key} = {batch_size}; try {key}={max(1, batch_size // 2)}{more}"


@contextmanager
def device_errors_named(device: torch.device, shortage: str) -> Iterator[None]:
    """Around work on a device.

    Args:
        device: that works.
        shortage: where it is that memory would run out, and what to try then.

    Raises:
        DeviceError: memory has run out, or a loader process died, wherever that was noticed; or trainer.deterministic
            asks for what the device does not have.
    """
    try:
        yield
    except RuntimeError as error:
        told = death_of_loader(error) or indeterminate(error, device)
        if told is None and is_out_of_memory(error):
            told = DeviceError(f"out of memory on {device} {shortage}: {error}")
        if told is None:
            raise
        raise told from error
