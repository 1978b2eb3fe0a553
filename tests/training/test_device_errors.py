from __future__ import annotations

import pytest
import torch

from runner.base.errors import DeviceError
from runner.training.device_errors import BEFORE_THE_FIRST_BATCH, batch_size_advice, named_device_errors

CPU = torch.device("cpu")


def test_memory_that_has_run_out_is_named():
    named = named_device_errors(CPU, batch_size_advice("batch_size", 8))
    with (
        pytest.raises(DeviceError, match=r"out of memory on cpu with batch_size = 8; try batch_size=4: .*allocate"),
        named,
    ):
        torch.empty(1 << 60)


@pytest.mark.parametrize(
    "text",
    [
        "CUDA error: out of memory\nCUDA kernel errors might be asynchronously reported",
        "cuDNN error: CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED",
        "Last error:\nCuda failure 2 'out of memory'",
        "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
    ],
)
def test_so_is_memory_that_others_than_the_allocator_miss(text):
    named = named_device_errors(torch.device("cuda", 0), BEFORE_THE_FIRST_BATCH)
    with (
        pytest.raises(DeviceError, match=r"out of memory on cuda:0 before the first batch; try a smaller model"),
        named,
    ):
        raise RuntimeError(text)


def test_what_has_no_deterministic_form_is_named():
    torch.use_deterministic_algorithms(True)
    try:
        with (
            pytest.raises(DeviceError, match=r"^trainer\.deterministic = true: put_ gives other bits each time on cpu"),
            named_device_errors(CPU, batch_size_advice("batch_size", 8)),
        ):
            torch.zeros(3).put_(torch.tensor([0, 0]), torch.ones(2), accumulate=False)
    finally:
        torch.use_deterministic_algorithms(False)


@pytest.mark.parametrize(
    ("text", "kind", "message"),
    [
        (
            "DataLoader worker (pid 7) is killed by signal: Killed. ",
            DeviceError,
            r"^a process that loads images died",
        ),
        ("another defect", RuntimeError, r"^another defect$"),
    ],
)
def test_a_dead_loader_is_told_from_a_defect(text, kind, message):
    with pytest.raises(kind, match=message), named_device_errors(CPU, batch_size_advice("batch_size", 8)):
        raise RuntimeError(text)
