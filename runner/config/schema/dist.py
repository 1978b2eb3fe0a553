"""Rules of the group `dist`."""

from __future__ import annotations

import re
from typing import Annotated, Literal

from pydantic import Field, field_validator

from runner.config.schema.base import Section
from runner.config.schema.effect import AHEAD, NONE, PLACE
from runner.config.schema.slurm import SlurmConfig

_HOST_AND_PORT = re.compile(r"(?:tcp://)?(?P<host>\[[0-9A-Fa-f:.]+\]|[^\s:/]+):(?P<port>\d{1,5})")


class DistConfig(Section):
    """How many processes on how many machines, and how they find each other."""

    launcher: Annotated[Literal["auto", "inline", "elastic", "adopted", "submitted"], NONE]
    """Who starts the processes. inline is this process alone; elastic starts them with PyTorch's elastic agent; adopted
    takes its place from torchrun, srun, mpirun or Azure, which has started them; auto finds out which. submitted
    (dist=slurm) hands the run to SLURM's queue."""
    nodes: Annotated[int, Field(ge=1), AHEAD]
    """Number of machines."""
    procs_per_node: Annotated[Literal["auto"] | Annotated[int, Field(ge=1)], AHEAD]
    """Processes on each machine; auto is the number of GPUs, or 1 on a CPU."""
    backend: Annotated[Literal["auto", "nccl", "gloo"], NONE]
    """Library that exchanges gradients; auto takes nccl with CUDA and gloo otherwise."""
    rendezvous: Annotated[str | None, NONE]
    """host:port where the machines meet; needed when nodes > 1 and no scheduler gives it. Where others have started the
    processes, tcp://host:port, file:///shared/path or env:// (MASTER_ADDR and MASTER_PORT)."""
    node_rank: Annotated[Annotated[int, Field(ge=0)] | None, PLACE]
    """Number of this machine, from 0; null lets the rendezvous choose. Machine 0 is the one that rendezvous names."""
    max_restarts: Annotated[int, Field(ge=0), NONE]
    """Times that the elastic agent starts all processes again after one has died; each attempt goes on from the newest
    checkpoint. A stop on request and a named error are no reason to restart."""
    sync_batchnorm: Annotated[bool, AHEAD]
    """Compute BatchNorm's statistics over the images of all processes, not of each (needs CUDA; slower)."""
    timeout_seconds: Annotated[float, Field(gt=0), NONE]
    """Longest wait in one exchange between processes."""
    rendezvous_timeout_seconds: Annotated[float, Field(gt=0), NONE]
    """Longest wait for the other machines or processes at the start; they may come in any order."""
    stall_timeout_seconds: Annotated[Annotated[float, Field(gt=0)] | None, NONE]
    """Longest time that a process may go without a step before its stacks are written to its log and the run ends
    (null = off); a run of one process may take as long as it likes."""
    slurm: Annotated[SlurmConfig, NONE]
    """What dist=slurm asks SLURM for; without meaning for the other launchers."""

    @field_validator("rendezvous")
    @classmethod
    def _place_to_meet(cls, rendezvous: str | None) -> str | None:
        if rendezvous is None or rendezvous == "env://" or re.fullmatch(r"file:///\S+", rendezvous):
            return rendezvous
        match = _HOST_AND_PORT.fullmatch(rendezvous)
        if match is None or not 1 <= int(match["port"]) <= 65535:
            raise ValueError("must be host:port with a port from 1 to 65535, such as node0:29400")
        return rendezvous

    @property
    def endpoint(self) -> tuple[str, int] | None:
        """Host and port of the rendezvous, where it has them."""
        match = _HOST_AND_PORT.fullmatch(self.rendezvous or "")
        return (match["host"].strip("[]"), int(match["port"])) if match else None
