from __future__ import annotations

import pytest
import torch

from runner.errors import DeviceError
from runner.shortage import shortages_named


def test_memory_that_has_run_out_is_named():
    named = shortages_named(torch.device("cpu"), "batch_size", 8)
    with (
        pytest.raises(DeviceError, match=r"out of memory on cpu with batch_size = 8; try batch_size=4: .*allocate"),
        named,
    ):
        torch.empty(1 << 60)


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
    with pytest.raises(kind, match=message), shortages_named(torch.device("cpu"), "batch_size", 8):
        raise RuntimeError(text)
