"""Rules of the group `dist`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import Field, field_validator

from runner.config.schema.base import AHEAD, NONE, PLACE, ConfigSection

_HOST_AND_PORT = re.compile(r"(?:tcp://)?(?P<host>\[[0-9A-Fa-f:.]+\]|[^\s:/]+):(?P<port>\d{1,5})")
# sbatch's parameters that other keys or the runner itself set.
_SET_BY = {
    "nodes": "dist.nodes",
    "ntasks": "dist.nodes and dist.procs_per_node",
    "ntasks-per-node": "dist.procs_per_node",
    "partition": "dist.slurm.partition",
    "account": "dist.slurm.account",
    "constraint": "dist.slurm.constraint",
    "time": "dist.slurm.time_minutes",
    "gpus-per-node": "dist.slurm.gpus_per_node",
    "cpus-per-task": "dist.slurm.cpus_per_task",
    "mem": "dist.slurm.mem",
    "job-name": "dist.slurm.job_name",
    "signal": "dist.slurm.warning_seconds",
    "requeue": "the runner: a job that SLURM interrupts is resumed",
    "no-requeue": "the runner: a job that SLURM interrupts is resumed",
    "output": "the runner: logs go into the run folder",
    "error": "the runner: logs go into the run folder",
    "open-mode": "the runner: logs go into the run folder",
    "array": "multirun: python -m runner -m dist=slurm … submits one job per combination",
}
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")
_NAME = re.compile(r"[a-z][a-z0-9_-]*")


class SlurmConfig(ConfigSection):
    """What dist=slurm asks SLURM for; without meaning for the other launchers."""

    job_name: Annotated[str, Field(min_length=1)]
    """Name of the job in the queue."""
    partition: str | None
    """Partition; null leaves it to the cluster."""
    account: str | None
    """Account that is charged; null leaves it to the cluster."""
    constraint: str | None
    """Features that the nodes must have, such as a100; null for any node."""
    time_minutes: Annotated[int, Field(ge=1)]
    """Time limit of the job. A run that needs longer saves a checkpoint before the limit, is requeued and resumes."""
    gpus_per_node: Annotated[int, Field(ge=0)]
    """GPUs on each node; 0 trains on CPUs. With dist.procs_per_node=auto also the number of processes. Where extra.gres
    names GPUs, their kind and number are asked for by that alone."""
    cpus_per_task: Annotated[int, Field(ge=1)] | None
    """CPUs for each process and its loader processes; null leaves it to the cluster, whose default is often 1."""
    mem: str | None
    """Memory of each node in SLURM's notation, such as 64G; null leaves it to the cluster."""
    warning_seconds: Annotated[int, Field(ge=10, le=65535)]
    """How long before the time limit SLURM sends SIGUSR1, on which the run saves a checkpoint; SLURM may send it up
    to a minute earlier."""
    setup: tuple[str, ...]
    """Shell commands that the job runs first on its first node, such as [module load cuda]. Those of an experiment are
    taken where dist=slurm, or this key, is typed on the command line."""
    extra: dict[str, str | int | float | bool | None]
    """Any other parameters of sbatch by their long names, such as {qos: high, exclusive: true, gres: "gpu:a100:4"};
    null and false leave one out."""

    def __hash__(self) -> int:
        # A dict has no hash.
        return hash(self.model_dump_json())

    @field_validator("job_name", "partition", "account", "constraint")
    @classmethod
    def _is_one_line(cls, text: str | None) -> str | None:
        # In the job's script a second line would be a command.
        if text is not None and _CONTROL.search(text):
            raise ValueError("must be one line without control characters")
        return text

    @field_validator("setup")
    @classmethod
    def _are_lines(cls, setup: tuple[str, ...]) -> tuple[str, ...]:
        if any(_CONTROL.search(line.replace("\t", " ")) for line in setup):
            raise ValueError("must be a list of single lines, one command each, without control characters")
        return setup

    @field_validator("mem")
    @classmethod
    def _is_an_amount(cls, mem: str | None) -> str | None:
        if mem is not None and not re.fullmatch(r"\d+[KMGT]?", mem):
            raise ValueError("must be a number with K, M, G or T after it, such as 64G")
        return mem

    @field_validator("extra")
    @classmethod
    def _is_not_set_elsewhere(cls, extra: Mapping[str, object]) -> Mapping[str, object]:
        for name, value in extra.items():
            if not _NAME.fullmatch(name):
                raise ValueError(f"must not have {name!r}: names are long ones of sbatch, such as qos or mail-type")
            if isinstance(value, str) and _CONTROL.search(value):
                raise ValueError(f"must have no control characters in the value of {name!r}")
            owner = _SET_BY.get(name.replace("_", "-"))
            if owner is not None:
                raise ValueError(f"must not have {name!r}, which is set by {owner}")
        return extra


class DistConfig(ConfigSection):
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
    """host:port of the rendezvous; needed when nodes > 1 and no scheduler gives it. Where torchrun, srun or the like
    has started the processes: tcp://host:port, file:///shared/path or env:// (MASTER_ADDR and MASTER_PORT)."""
    node_rank: Annotated[Annotated[int, Field(ge=0)] | None, PLACE]
    """Number of this machine, from 0; null lets the rendezvous choose. Machine 0 is the one that rendezvous names."""
    max_restarts: Annotated[int, Field(ge=0), NONE]
    """Times that the elastic agent restarts all processes after one has died; each attempt resumes from the newest
    checkpoint. After a stop on request or a named error it does not restart."""
    sync_batchnorm: Annotated[bool, AHEAD]
    """Compute BatchNorm's statistics over the images of all processes, not of each (needs CUDA; slower)."""
    timeout_seconds: Annotated[float, Field(gt=0), NONE]
    """Longest wait in one exchange between processes."""
    rendezvous_timeout_seconds: Annotated[float, Field(gt=0), NONE]
    """Longest wait for the other machines or processes at the start; they may start in any order."""
    stall_timeout_seconds: Annotated[Annotated[float, Field(gt=0)] | None, NONE]
    """Longest time of a process without a step, after which its stacks are written to its log and the run ends (null =
    off); without effect in a run of one process."""
    slurm: Annotated[SlurmConfig, NONE]
    """What dist=slurm asks SLURM for; without meaning for the other launchers."""

    @field_validator("rendezvous")
    @classmethod
    def _is_an_address(cls, rendezvous: str | None) -> str | None:
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
