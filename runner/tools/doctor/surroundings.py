"""What the operating system gives: cores, shared memory, disk, open files, memory. Imports no torch."""

from __future__ import annotations

import os
import resource
import shutil
from dataclasses import dataclass
from pathlib import Path

from joblib import cpu_count  # type: ignore[import-untyped]

from runner.base.errors import DeviceError, OutputError
from runner.config.schema.data import DataConfig
from runner.tools.doctor.findings import Finding, gigabytes

_SHARED_MEMORY = Path("/dev/shm")
# Of each loader process: two finished batches and the one it is working on.
_BATCHES_IN_FLIGHT = 3
# Training and validation each keep loader processes of their own.
_NUM_LOADERS = 2
_TENSORS_PER_BATCH = 3
_FILES_OF_A_PROCESS = 128
_FILES_PER_WORKER = 8


@dataclass(frozen=True, kw_only=True)
class Load:
    """What a run asks of this machine."""

    num_processes: int
    """Training processes on this machine."""
    num_threads: int
    """Threads with which each of them computes."""
    num_workers: int
    """Loader processes of each of them."""


def check_cores(load: Load, num_cores: int | None = None, *, computes: bool) -> Finding:
    """Whether threads and loader processes outnumber the cores, or leave some idle.

    Args:
        load: what the run asks for.
        num_cores: cores that this process may use; by default what affinity and a container's limits leave.
        computes: whether the cores train the model, rather than a GPU.
    """
    cores = int(cpu_count()) if num_cores is None else num_cores
    wanted = load.num_processes * (load.num_threads + load.num_workers)
    advice = []
    if wanted > cores:
        per_process = max(cores // load.num_processes, 1)
        threads = max(per_process - load.num_workers, 1)
        workers = max(per_process - load.num_threads, 0)
        choices = [f"OMP_NUM_THREADS={threads}"] * (threads < load.num_threads)
        choices += [f"data.workers={workers}"] * (workers < load.num_workers)
        choices += ["fewer processes"] * (load.num_processes > cores)
        advice = [f"{wanted} threads and loader processes share {cores} cores: {' or '.join(choices)}"]
    elif "OMP_NUM_THREADS" in os.environ and computes and wanted < cores:
        advice = [f"OMP_NUM_THREADS={os.environ['OMP_NUM_THREADS']} leaves {cores - wanted} cores idle: unset it"]
    return Finding(
        topic="cores",
        found=f"{cores} for {load.num_processes} × ({load.num_threads} threads + {load.num_workers} loader processes)",
        values={"num_cores": cores, "num_wanted": wanted, **vars(load)},
        advice=tuple(advice),
    )


def check_shared_memory(data: DataConfig, load: Load, folder: Path = _SHARED_MEMORY) -> Finding:
    """Whether the batches that loader processes hand over fit into shared memory."""
    batch_bytes = data.batch_size * 3 * data.image_size**2
    needed = load.num_processes * load.num_workers * _NUM_LOADERS * _BATCHES_IN_FLIGHT * batch_bytes
    if not needed or not folder.is_dir():
        why = "no loader processes" if not needed else f"{folder} is not there"
        return Finding(topic="shared memory", found=f"not needed: {why}", values={"needed_bytes": 0})
    free = shutil.disk_usage(folder).free
    found = f"{gigabytes(free)} free in {folder}, {gigabytes(needed)} needed by loader processes"
    error = None
    if free < needed:
        error = DeviceError(
            f"{folder} has {gigabytes(free)} free, but {load.num_processes * load.num_workers} loader processes keep "
            f"up to {gigabytes(needed)} of batches there; give more (docker run --shm-size={needed // 2**30 + 1}g), or "
            "lower data.workers or data.batch_size"
        )
    return Finding(topic="shared memory", found=found, values={"free_bytes": free, "needed_bytes": needed}, error=error)


def check_open_files(load: Load) -> Finding:
    """Whether the limit of open files leaves room for the loader processes' pipes and shared tensors."""
    per_worker = _FILES_PER_WORKER + _BATCHES_IN_FLIGHT * _TENSORS_PER_BATCH
    needed = _FILES_OF_A_PROCESS + _NUM_LOADERS * load.num_workers * per_worker
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    error = None
    if soft != resource.RLIM_INFINITY and soft < needed:
        error = DeviceError(
            f"this shell allows {soft} open files, but a training process with {load.num_workers} loader processes "
            f"needs up to {needed}; raise the limit with `ulimit -n {max(needed, 4096)}`, or lower data.workers"
        )
    shown = "unlimited" if soft == resource.RLIM_INFINITY else f"{soft:,}"
    return Finding(
        topic="open files",
        found=f"{shown} allowed, about {needed} needed by each process",
        values={"allowed": soft, "allowed_at_most": hard, "needed": needed},
        error=error,
    )


def check_disk(output_dir: Path, needed: int | None) -> Finding:
    """Whether checkpoints and the packaged model fit where runs are kept.

    Args:
        output_dir: folder under which run folders are made; need not exist yet.
        needed: bytes of a run's checkpoints and model; None where they are not known.
    """
    existing = output_dir.absolute()
    while not existing.is_dir():
        existing = existing.parent
    free = shutil.disk_usage(existing).free
    wanted = "" if needed is None else f", about {gigabytes(needed)} needed by checkpoints and model"
    error = None
    if needed is not None and free < needed:
        error = OutputError(
            f"{output_dir}: the disk has {gigabytes(free)} free, but checkpoints and model of this run need "
            f"{gigabytes(needed)}; free space, choose another output_dir, or lower trainer.keep"
        )
    return Finding(
        topic="disk",
        found=f"{gigabytes(free)} free at {output_dir}{wanted}",
        values={"free_bytes": free, "needed_bytes": needed},
        error=error,
    )
