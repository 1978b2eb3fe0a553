"""Rank, world size and rendezvous from the environment variables of torchrun, srun, mpirun and Azure.

Imports no torch.
"""

from __future__ import annotations

import os
import re
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Event

from runner.base.errors import LaunchError, RunnerError
from runner.config.schema.dist import DistConfig

# Without a given port, one is derived from the job: above the ports of services, below Linux' ephemeral ports.
_FIRST_PORT, _NUM_PORTS = 20_000, 12_000


@dataclass(frozen=True, kw_only=True)
class AdoptedRank:
    """Rank of this process among processes that another program started."""

    starter: str
    """The program, and the environment variables that show it."""
    rank: int
    world_size: int | None
    """Number of processes; None where only the config gives it."""
    local_rank: int | None = None
    local_world_size: int | None = None
    num_nodes: int | None = None
    rendezvous: str | None = None
    """URL of the rendezvous; None where the program gives none."""


def adopted_rank(environ: Mapping[str, str] = os.environ) -> AdoptedRank | None:
    """The rank that the environment gives; None where the user started this process alone.

    Raises:
        LaunchError: a variable is no number, or there are fewer processes than the rank says.
    """
    places = (read(environ) for read in (_torchrun, _azure, _open_mpi, _slurm_step, _pmi))
    place = next((place for place in places if place is not None), None)
    if place is not None and place.world_size is not None and place.rank >= place.world_size:
        raise LaunchError(
            f"{place.starter}: rank {place.rank} of {place.world_size} processes; ranks go from 0 to their number less "
            "one; does another job's environment linger in this shell?"
        )
    return place


def _number(environ: Mapping[str, str], *names: str) -> int | None:
    """The value of the first of these variables that is set.

    Raises:
        LaunchError: it is no number.
    """
    name = next((name for name in names if environ.get(name, "").strip()), None)
    if name is None:
        return None
    if not re.fullmatch(r"\s*\d{1,9}\s*", environ[name], re.ASCII):
        raise LaunchError(
            f"the environment variable {name} = {environ[name]!r} must be a number from 0, as torchrun, srun or mpirun "
            f"set it; to train alone, remove it: unset {name}"
        )
    return int(environ[name])


def _torchrun(environ: Mapping[str, str]) -> AdoptedRank | None:
    rank, world_size = _number(environ, "RANK"), _number(environ, "WORLD_SIZE")
    if rank is None or world_size is None:
        return None
    starter = "torchrun (TORCHELASTIC_RUN_ID)" if "TORCHELASTIC_RUN_ID" in environ else "the variables RANK, WORLD_SIZE"
    return AdoptedRank(
        starter=starter,
        rank=rank,
        world_size=world_size,
        local_rank=_number(environ, "LOCAL_RANK"),
        local_world_size=_number(environ, "LOCAL_WORLD_SIZE"),
        num_nodes=_number(environ, "GROUP_WORLD_SIZE"),
        rendezvous="env://",
    )


def _azure(environ: Mapping[str, str]) -> AdoptedRank | None:
    rendezvous, rank = environ.get("AZ_BATCHAI_PYTORCH_INIT_METHOD"), _number(environ, "AZ_BATCHAI_TASK_INDEX")
    if not rendezvous or rank is None:
        return None
    world_size = _number(environ, "AZ_BATCHAI_WORLD_SIZE", "WORLD_SIZE")
    return AdoptedRank(
        starter="Azure (AZ_BATCHAI_PYTORCH_INIT_METHOD)", rank=rank, world_size=world_size, rendezvous=rendezvous
    )


def _open_mpi(environ: Mapping[str, str]) -> AdoptedRank | None:
    rank, world_size = _number(environ, "OMPI_COMM_WORLD_RANK"), _number(environ, "OMPI_COMM_WORLD_SIZE")
    if rank is None or world_size is None:
        return None
    local_world_size = _number(environ, "OMPI_COMM_WORLD_LOCAL_SIZE")
    is_one_machine = local_world_size == world_size
    job = environ.get("PMIX_NAMESPACE") or environ.get("OMPI_MCA_ess_base_jobid") or str(os.getppid())
    return AdoptedRank(
        starter="mpirun (OMPI_COMM_WORLD_RANK)",
        rank=rank,
        world_size=world_size,
        local_rank=_number(environ, "OMPI_COMM_WORLD_LOCAL_RANK"),
        local_world_size=local_world_size,
        rendezvous=_given_master(environ) or (_derived("127.0.0.1", job) if is_one_machine else None),
    )


def _slurm_step(environ: Mapping[str, str]) -> AdoptedRank | None:
    # Some of these variables are also set in a batch script and in a shell of `srun --pty`, which are no ranks.
    world_size = _number(environ, "SLURM_STEP_NUM_TASKS")
    rank = _number(environ, "SLURM_PROCID")
    if "SLURM_STEP_ID" not in environ or rank is None or world_size is None or world_size == 1:
        return None
    job = f"{environ.get('SLURM_JOB_ID', '')}.{environ['SLURM_STEP_ID']}"
    nodes, num_nodes = environ.get("SLURM_STEP_NODELIST", ""), _number(environ, "SLURM_STEP_NUM_NODES")
    host = "127.0.0.1" if num_nodes == 1 else first_host(nodes)
    return AdoptedRank(
        starter="srun (SLURM_STEP_ID)",
        rank=rank,
        world_size=world_size,
        local_rank=_number(environ, "SLURM_LOCALID"),
        num_nodes=num_nodes,
        rendezvous=_given_master(environ) or (_derived(host, job) if host else None),
    )


def _pmi(environ: Mapping[str, str]) -> AdoptedRank | None:
    rank, world_size = _number(environ, "PMI_RANK"), _number(environ, "PMI_SIZE")
    if rank is None or world_size is None:
        return None
    local_world_size = _number(environ, "MPI_LOCALNRANKS")
    job = str(os.getppid())  # the same mpiexec or its proxy, as all are on one machine
    is_one_machine = local_world_size == world_size
    return AdoptedRank(
        starter="mpirun or mpiexec (PMI_RANK)",
        rank=rank,
        world_size=world_size,
        local_rank=_number(environ, "MPI_LOCALRANKID"),
        local_world_size=local_world_size,
        rendezvous=_given_master(environ) or (_derived("127.0.0.1", job) if is_one_machine else None),
    )


def _given_master(environ: Mapping[str, str]) -> str | None:
    if environ.get("MASTER_ADDR") and environ.get("MASTER_PORT"):
        return "env://"
    azure = environ.get("AZ_BATCH_MASTER_NODE") or environ.get("AZ_BATCHAI_MPI_MASTER_NODE")
    if not azure:
        return None
    host, _, port = azure.partition(":")
    return f"tcp://{host}:{port or _FIRST_PORT}"


def _derived(host: str, job: str) -> str:
    return f"tcp://{host}:{_FIRST_PORT + zlib.crc32(job.encode()) % _NUM_PORTS}"


def first_host(node_list: str) -> str:
    """The first host of a SLURM node list: n01 of `n[01-03,7],m1`."""
    return re.sub(r"\[([^\],-]+)[^\]]*\]", r"\1", re.split(r",(?![^\[]*\])", node_list)[0])


def rendezvous_url(place: AdoptedRank, dist: DistConfig) -> str:
    """URL of the rendezvous: dist.rendezvous, else that of the program that started the processes.

    Raises:
        LaunchError: neither gives one.
    """
    if dist.rendezvous is not None:
        return dist.rendezvous if "://" in dist.rendezvous else f"tcp://{dist.rendezvous}"
    if place.rendezvous is None:
        raise LaunchError(
            f"started by {place.starter} on more than one machine, but without a rendezvous for the {place.world_size} "
            "processes; set MASTER_ADDR to the host of rank 0 and MASTER_PORT to a free port there (mpirun -x "
            "MASTER_ADDR=HOST -x MASTER_PORT=29500), or give dist.rendezvous=HOST:PORT"
        )
    return place.rendezvous


@contextmanager
def refusal_shared(place: AdoptedRank | None) -> Iterator[Event]:
    """If the block raises, let the other processes that torchrun or the like started raise the same error.

    Yields:
        An event for the caller to set once all checks have passed.
    """
    passed = Event()
    try:
        yield passed
    except RunnerError as error:
        if place is not None and not passed.is_set():
            from runner.launch.ranks.adopted import share_refusal  # noqa: PLC0415 - imports torch

            share_refusal(place, error)
        raise
