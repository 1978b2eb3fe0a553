"""What torchrun, srun, mpirun and Azure tell a process that they have started: one table for each of them.

Imports no torch.
"""

from __future__ import annotations

import os
import re
import zlib
from collections.abc import Mapping
from dataclasses import dataclass

from runner.base.errors import LaunchError
from runner.config.schema.dist import DistConfig

# Where nobody says at which port to meet, a number that follows from the job, above the ports of services and below
# those that Linux hands out by itself.
_FIRST_PORT, _NUM_PORTS = 20_000, 12_000


@dataclass(frozen=True, kw_only=True)
class Place:
    """The place of this process among processes that others have started."""

    starter: str
    """Who started it, and the variables that say so."""
    rank: int
    world_size: int | None
    """Number of processes; None where only the config says."""
    local_rank: int | None = None
    local_world_size: int | None = None
    num_nodes: int | None = None
    meeting: str | None = None
    """URL of the rendezvous; None where the starter names none."""


def adopted_place(environ: Mapping[str, str] = os.environ) -> Place | None:
    """The place that the environment gives; None where nobody but the user has started this process."""
    for table in (_torchrun, _azure, _open_mpi, _slurm_step, _pmi):
        place = table(environ)
        if place is not None:
            return place
    return None


def _number(environ: Mapping[str, str], *names: str) -> int | None:
    """The first of these variables that holds a number."""
    return next((int(environ[name]) for name in names if environ.get(name, "").strip().isdecimal()), None)


def _torchrun(environ: Mapping[str, str]) -> Place | None:
    rank, world_size = _number(environ, "RANK"), _number(environ, "WORLD_SIZE")
    if rank is None or world_size is None:
        return None
    starter = "torchrun (TORCHELASTIC_RUN_ID)" if "TORCHELASTIC_RUN_ID" in environ else "the variables RANK, WORLD_SIZE"
    return Place(
        starter=starter,
        rank=rank,
        world_size=world_size,
        local_rank=_number(environ, "LOCAL_RANK"),
        local_world_size=_number(environ, "LOCAL_WORLD_SIZE"),
        num_nodes=_number(environ, "GROUP_WORLD_SIZE"),
        meeting="env://",
    )


def _azure(environ: Mapping[str, str]) -> Place | None:
    meeting, rank = environ.get("AZ_BATCHAI_PYTORCH_INIT_METHOD"), _number(environ, "AZ_BATCHAI_TASK_INDEX")
    if not meeting or rank is None:
        return None
    world_size = _number(environ, "AZ_BATCHAI_WORLD_SIZE", "WORLD_SIZE")
    return Place(starter="Azure (AZ_BATCHAI_PYTORCH_INIT_METHOD)", rank=rank, world_size=world_size, meeting=meeting)


def _open_mpi(environ: Mapping[str, str]) -> Place | None:
    rank, world_size = _number(environ, "OMPI_COMM_WORLD_RANK"), _number(environ, "OMPI_COMM_WORLD_SIZE")
    if rank is None or world_size is None:
        return None
    local_world_size = _number(environ, "OMPI_COMM_WORLD_LOCAL_SIZE")
    is_one_machine = local_world_size == world_size
    job = environ.get("PMIX_NAMESPACE") or environ.get("OMPI_MCA_ess_base_jobid") or str(os.getppid())
    return Place(
        starter="mpirun (OMPI_COMM_WORLD_RANK)",
        rank=rank,
        world_size=world_size,
        local_rank=_number(environ, "OMPI_COMM_WORLD_LOCAL_RANK"),
        local_world_size=local_world_size,
        meeting=_given_master(environ) or (_derived("127.0.0.1", job) if is_one_machine else None),
    )


def _slurm_step(environ: Mapping[str, str]) -> Place | None:
    # A batch script and a shell of `srun --pty` are no group of ranks, though some of these variables are set there.
    world_size = _number(environ, "SLURM_STEP_NUM_TASKS")
    rank = _number(environ, "SLURM_PROCID")
    if "SLURM_STEP_ID" not in environ or rank is None or world_size is None or world_size == 1:
        return None
    job = f"{environ.get('SLURM_JOB_ID', '')}.{environ['SLURM_STEP_ID']}"
    nodes, num_nodes = environ.get("SLURM_STEP_NODELIST", ""), _number(environ, "SLURM_STEP_NUM_NODES")
    host = "127.0.0.1" if num_nodes == 1 else first_host(nodes)
    return Place(
        starter="srun (SLURM_STEP_ID)",
        rank=rank,
        world_size=world_size,
        local_rank=_number(environ, "SLURM_LOCALID"),
        num_nodes=num_nodes,
        meeting=_given_master(environ) or (_derived(host, job) if host else None),
    )


def _pmi(environ: Mapping[str, str]) -> Place | None:
    rank, world_size = _number(environ, "PMI_RANK"), _number(environ, "PMI_SIZE")
    if rank is None or world_size is None:
        return None
    local_world_size = _number(environ, "MPI_LOCALNRANKS")
    job = str(os.getppid())  # the same mpiexec or its proxy, as all are on one machine
    is_one_machine = local_world_size == world_size
    return Place(
        starter="mpirun or mpiexec (PMI_RANK)",
        rank=rank,
        world_size=world_size,
        local_rank=_number(environ, "MPI_LOCALRANKID"),
        local_world_size=local_world_size,
        meeting=_given_master(environ) or (_derived("127.0.0.1", job) if is_one_machine else None),
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
    """The first host of SLURM's notation: `n[01-03,7],m1` begins with n01."""
    return re.sub(r"\[([^\],-]+)[^\]]*\]", r"\1", re.split(r",(?![^\[]*\])", node_list)[0])


def meeting_of(place: Place, dist: DistConfig) -> str:
    """URL at which these processes meet: that of the config, else that of their starter.

    Raises:
        LaunchError: when neither names one.
    """
    if dist.rendezvous is not None:
        return dist.rendezvous if "://" in dist.rendezvous else f"tcp://{dist.rendezvous}"
    if place.meeting is None:
        raise LaunchError(
            f"started by {place.starter} on more than one machine, but nobody says where the {place.world_size} "
            "processes meet; set MASTER_ADDR to the host of rank 0 and MASTER_PORT to a free port there (mpirun -x "
            "MASTER_ADDR=HOST -x MASTER_PORT=29500), or give dist.rendezvous=HOST:PORT"
        )
    return place.meeting
