"""Turns torch's RuntimeErrors (too little memory, no deterministic kernel, a dead loader process) into named errors."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from runner.base.errors import DeviceError
from runner.data.loader.loader import death_of_loader

# torch.OutOfMemoryError comes from torch's GPU allocator only. These are in messages of the CPU's allocator; of CUDA,
# HIP, MPS and NCCL; of cuBLAS; and of cuDNN.
_SIGNS_OF_TOO_LITTLE_MEMORY = ("DefaultCPUAllocator", "out of memory", "STATUS_ALLOC_FAILED", "_ALLOCATION_FAILED")
_SIGN_OF_NONDETERMINISM = " does not have a deterministic implementation"
BEFORE_THE_FIRST_BATCH = (
    "before the first batch; try a smaller model, data.cache=none, or a device that nobody else uses"
)
"""What to try where memory runs out before batches need any."""


def is_out_of_memory(error: RuntimeError) -> bool:
    """Whether a device, or the machine itself, had too little memory."""
    return isinstance(error, torch.OutOfMemoryError) or any(sign in str(error) for sign in _SIGNS_OF_TOO_LITTLE_MEMORY)


def nondeterminism_error(error: RuntimeError, device: torch.device) -> DeviceError | None:
    """The named error where trainer.deterministic needs an operation that the device lacks; None for other errors."""
    operation, sign, _ = str(error).partition(_SIGN_OF_NONDETERMINISM)
    if not sign:
        return None
    return DeviceError(
        f"trainer.deterministic = true: {operation} gives other bits each time on {device.type}, and there is no other "
        "way to compute it; take another model, or trainer.deterministic=false"
    )


def batch_size_advice(key: str, batch_size: int, more: str = "") -> str:
    """What to try where memory runs out during batches.

    Args:
        key: the config key of the batch size.
        batch_size: its value.
        more: what to try along with half of it.
    """
    return f"with {key} = {batch_size}; try {key}={max(1, batch_size // 2)}{more}"


@contextmanager
def named_device_errors(device: torch.device, shortage: str) -> Iterator[None]:
    """Raise torch's errors in a block by their names.

    Args:
        device: the device that the block uses.
        shortage: for the message when memory runs out: in which phase, and what to try.

    Raises:
        DeviceError: memory ran out, a loader process died, or trainer.deterministic needs an operation that the
            device lacks.
    """
    try:
        yield
    except RuntimeError as error:
        named = death_of_loader(error) or nondeterminism_error(error, device)
        if named is None and is_out_of_memory(error):
            named = DeviceError(f"out of memory on {device} {shortage}: {error}")
        if named is None:
            raise
        raise named from error
