"""Chooses the launch mode and the number of processes. Imports no torch where there is no GPU."""

from __future__ import annotations

import importlib.util
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, assert_never

from runner.base.errors import LaunchError, how_to_install
from runner.config.schema import Config
from runner.launch.environment import AdoptedRank, adopted_rank

Mode = Literal["inline", "elastic", "adopted", "submitted"]
# Devices of the drivers of NVIDIA and AMD, and of WSL; without any there is no need to ask torch.
_GPU_DRIVERS = ("/dev/nvidiactl", "/dev/kfd", "/dev/dxg", "/dev/nvhost-gpu")
_MOST_PROCESSES_PER_CORE = 16  # far more than make sense, and few enough to start
_THREE_WAYS = (
    "give each machine the same dist.rendezvous=HOST:PORT, where HOST is one of them and PORT is free there; or start "
    "all processes with torchrun, srun or mpirun; or let SLURM do both: dist=slurm"
)


@dataclass(frozen=True, kw_only=True)
class LaunchPlan:
    """How many processes there are, and what starts them."""

    mode: Mode
    reason: str
    """Why this mode, for the log."""
    num_nodes: int
    """Number of machines; 1 where another program started the processes and gives no number."""
    procs_per_node: int
    """Processes on this machine."""
    world_size: int
    """Number of processes."""
    place: AdoptedRank | None = None
    """Rank of this process, where another program started the processes."""


def choose_launch(config: Config, place: AdoptedRank | None = None, *, is_in_job: bool = False) -> LaunchPlan:
    """Choose the launch mode.

    Args:
        config: the experiment.
        place: of this process, by default from the environment (:func:`runner.launch.environment.adopted_rank`).
        is_in_job: whether this process belongs to the SLURM job of the run.

    Raises:
        LaunchError: the config asks for more than there is; the message has both numbers.
    """
    dist, place = config.dist, place or adopted_rank()
    match dist.launcher:
        case "auto":
            return _own(config) if place is None else _adopted(config, place)
        case "adopted":
            if place is None:
                raise LaunchError(
                    "dist.launcher = adopted, but no program has started a group of processes: none of RANK, "
                    "OMPI_COMM_WORLD_RANK, PMI_RANK, SLURM_STEP_ID, AZ_BATCHAI_PYTORCH_INIT_METHOD is set; start with "
                    "torchrun, srun or mpirun, or leave dist.launcher=auto"
                )
            return _adopted(config, place)
        case "inline" | "elastic":
            return _own(config)
        case "submitted":
            if place is not None:
                return _adopted(config, place)
            if not is_in_job:
                return _submitted(config)
            reason = f"the only process of SLURM's job {os.environ.get('SLURM_JOB_ID', '')}"
            return LaunchPlan(mode="inline", reason=reason, num_nodes=1, procs_per_node=1, world_size=1)
        case _:
            assert_never(dist.launcher)


def _check_can_submit() -> None:
    if importlib.util.find_spec("submitit") is None:
        raise LaunchError(f"dist=slurm needs submitit, which is not installed: {how_to_install('slurm')}")
    missing = [command for command in ("sbatch", "srun") if shutil.which(command) is None]
    if missing:
        raise LaunchError(
            f"dist=slurm needs SLURM's {' and '.join(missing)}, not found on this machine's PATH; start from a login "
            "node of the cluster, or train here without dist=slurm"
        )


def _submitted(config: Config) -> LaunchPlan:
    dist, slurm = config.dist, config.dist.slurm
    _check_can_submit()
    uses_gpus = slurm.gpus_per_node > 0 and config.trainer.device not in ("cpu", "mps")
    procs, why = dist.procs_per_node, f"dist.procs_per_node = {dist.procs_per_node}"
    if procs == "auto":
        procs = slurm.gpus_per_node if uses_gpus else 1
        why += f": dist.slurm.gpus_per_node = {slurm.gpus_per_node}"
    elif uses_gpus and procs > slurm.gpus_per_node:
        raise LaunchError(
            f"dist.procs_per_node = {procs}, but dist.slurm.gpus_per_node = {slurm.gpus_per_node}, and each process "
            f"needs a GPU; ask for {procs}, or leave dist.procs_per_node=auto, or train on CPUs: trainer.device=cpu"
        )
    return LaunchPlan(
        mode="submitted",
        reason=f"dist.launcher = submitted; {why}",
        num_nodes=dist.nodes,
        procs_per_node=procs,
        world_size=dist.nodes * procs,
    )


def _own(config: Config) -> LaunchPlan:
    dist = config.dist
    procs, why = _procs_per_node(config)
    world_size = dist.nodes * procs
    if dist.nodes > 1 and dist.endpoint is None:
        given = "" if dist.rendezvous is None else f" (dist.rendezvous = {dist.rendezvous!r} has no host and port)"
        raise LaunchError(
            f"dist.nodes = {dist.nodes}, but no rendezvous of these machines is given{given}: {_THREE_WAYS}"
        )
    if dist.launcher == "inline" and world_size > 1:
        raise LaunchError(
            f"dist.launcher = inline is one process, but {dist.nodes} machines × {procs} processes ({why}) are "
            f"{world_size}; set dist.nodes=1 dist.procs_per_node=1, or dist.launcher=auto"
        )
    is_alone = world_size == 1 and dist.launcher != "elastic"
    machines = f"{dist.nodes} machines × " if dist.nodes > 1 else ""
    processes = "1 process" if procs == 1 else f"{procs} processes"
    return LaunchPlan(
        mode="inline" if is_alone else "elastic",
        reason=f"{machines}{processes}, {why}",
        num_nodes=dist.nodes,
        procs_per_node=procs,
        world_size=world_size,
    )


def _procs_per_node(config: Config) -> tuple[int, str]:
    wanted = config.dist.procs_per_node
    num_gpus = 0 if config.trainer.device in ("cpu", "mps") else num_usable_gpus()
    if wanted == "auto":
        return max(num_gpus, 1), f"dist.procs_per_node = auto: {num_gpus or 'no'} GPUs"
    if num_gpus and wanted > num_gpus:  # without any GPU, choose_device raises
        raise LaunchError(
            f"dist.procs_per_node = {wanted}, but this machine has {num_gpus} GPUs, and each process needs one; "
            f"set it to at most {num_gpus} or auto, or trainer.device=cpu"
        )
    # A config from another machine may ask for so many processes that this one would hang.
    most = _MOST_PROCESSES_PER_CORE * (os.cpu_count() or 1)
    if not num_gpus and wanted > most:
        raise LaunchError(
            f"dist.procs_per_node = {wanted}, but this machine has {os.cpu_count()} cores, for at most "
            f"{_MOST_PROCESSES_PER_CORE} processes each; set it to at most {most}, or to auto, which is 1 on a CPU"
        )
    return wanted, f"dist.procs_per_node = {wanted}"


def num_usable_gpus() -> int:
    """Number of GPUs that this process may use."""
    if not any(Path(driver).exists() for driver in _GPU_DRIVERS):
        return 0
    from runner.dist.device import count_cuda_devices  # noqa: PLC0415 - importing torch takes seconds

    return count_cuda_devices()


def _adopted(config: Config, place: AdoptedRank) -> LaunchPlan:
    dist = config.dist
    given = 1 if dist.procs_per_node == "auto" else dist.procs_per_node
    world_size = dist.nodes * given if place.world_size is None else place.world_size
    if place.rank >= world_size:
        raise LaunchError(
            f"{place.starter} says rank {place.rank}, but there are only {world_size} processes (dist.nodes × "
            "dist.procs_per_node); set dist.nodes to their number"
        )
    if dist.nodes > 1 and place.num_nodes is not None and dist.nodes != place.num_nodes:
        raise LaunchError(
            f"dist.nodes = {dist.nodes}, but {place.starter} uses {place.num_nodes} machines; leave out dist.nodes"
        )
    local = place.local_world_size
    if isinstance(dist.procs_per_node, int) and local is not None and dist.procs_per_node != local:
        raise LaunchError(
            f"dist.procs_per_node = {dist.procs_per_node}, but {place.starter} has started {local} processes on this "
            "machine; leave out dist.procs_per_node"
        )
    return LaunchPlan(
        mode="adopted",
        reason=f"started by {place.starter}, {world_size} processes",
        num_nodes=place.num_nodes or 1,
        procs_per_node=local or 1,
        world_size=world_size,
        place=place,
    )
