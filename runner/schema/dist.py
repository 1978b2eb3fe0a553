"""Rules of the group `dist`."""

from __future__ import annotations

import re
from typing import Annotated, Literal

from pydantic import Field, field_validator

from runner.schema.base import Section


class DistConfig(Section):
    """How many processes on how many machines, and how they find each other."""

    nodes: Annotated[int, Field(ge=1)]
    """Number of machines."""
    procs_per_node: Literal["auto"] | Annotated[int, Field(ge=1)]
    """Processes on each machine; auto is the number of GPUs, or 1 on a CPU."""
    backend: Literal["auto", "nccl", "gloo"]
    """Library that exchanges gradients; auto takes nccl with CUDA and gloo otherwise."""
    rendezvous: str | None
    """host:port where the machines meet; needed when nodes > 1 and no scheduler gives it."""
    node_rank: Annotated[int, Field(ge=0)] | None
    """Number of this machine, from 0; null lets the rendezvous choose."""

    @field_validator("rendezvous")
    @classmethod
    def _host_and_port(cls, rendezvous: str | None) -> str | None:
        if rendezvous is None:
            return None
        match = re.fullmatch(r"(\[[0-9A-Fa-f:.]+\]|[^\s:/]+):(\d{1,5})", rendezvous)
        if match is None or not 1 <= int(match.group(2)) <= 65535:
            raise ValueError("must be host:port with a port from 1 to 65535, such as node0:29400")
        return rendezvous
