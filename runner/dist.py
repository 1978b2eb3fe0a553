"""What a process knows of the group it belongs to, and the exchanges that training needs."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.distributed


@dataclass(frozen=True, kw_only=True)
class DistContext:
    """Place of this process among all processes of a run."""

    rank: int
    """Number of this process, from 0."""
    local_rank: int
    """Number of this process on its machine, from 0."""
    world_size: int
    """Number of processes."""
    local_world_size: int
    """Number of processes on this machine."""
    device: torch.device
    """Where this process computes."""

    @property
    def is_main(self) -> bool:
        """Whether this process owns the run folder."""
        return self.rank == 0

    def sum(self, values: torch.Tensor) -> torch.Tensor:
        """The element-wise sum over all processes, in place; every process must call it."""
        if self.world_size > 1:
            torch.distributed.all_reduce(values)
        return values


def single_process(device: torch.device) -> DistContext:
    """The context of a run of one process."""
    return DistContext(rank=0, local_rank=0, world_size=1, local_world_size=1, device=device)
