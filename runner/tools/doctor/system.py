"""Checks of the operating system: cores, shared memory, open files, disk, and the rendezvous over the network."""

from __future__ import annotations

import errno
import os
import resource
import shutil
import socket
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from joblib import cpu_count  # type: ignore[import-untyped]
from torch.distributed import DistError, TCPStore  # type: ignore[attr-defined]

from runner.base.errors import DeviceError, LaunchError, OutputError
from runner.base.reasons import reason_of
from runner.base.stop import run_with_timeout
from runner.config.schema.data import DataConfig
from runner.config.schema.dist import DistConfig
from runner.data.cache.cache_policy import bytes_once_prepared
from runner.tools.doctor.findings import Finding, gigabytes

_SHARED_MEMORY = Path("/dev/shm")
# Of each loader process: two finished batches and the one it is working on.
_BATCHES_IN_FLIGHT = 3
# Training and validation each keep loader processes of their own.
_NUM_LOADERS = 2
_TENSORS_PER_BATCH = 3
_FILES_OF_A_PROCESS = 128
_FILES_PER_WORKER = 8
_SECONDS_TO_ANSWER = 3.0


@dataclass(frozen=True, kw_only=True)
class Load:
    """Processes and threads of a run on this machine."""

    num_processes: int
    """Training processes on this machine."""
    num_threads: int
    """Computing threads of each training process."""
    num_workers: int
    """Loader processes of each training process."""


def check_cores(load: Load, num_cores: int | None = None, *, computes: bool) -> Finding:
    """Check whether threads and loader processes outnumber the cores, or leave some idle.

    Args:
        load: of the run.
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
    """Check whether the batches of the loader processes fit into shared memory."""
    image_bytes = max(bytes_once_prepared(data, size) for size in (data.image_size, data.eval_image_size))
    batch_bytes = data.smallest_batch_size * image_bytes
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
    """Check whether the limit of open files suffices for the loader processes' pipes and shared tensors."""
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
    """Check whether checkpoints and the packaged model fit on the disk of the run folders.

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


def check_rendezvous(dist: DistConfig) -> Finding:
    """Check whether the host of dist.rendezvous resolves, and whether its port is free or a run answers there.

    If another machine does not answer, that is no error: its run may not have started yet.
    """
    if dist.endpoint is None:
        return Finding(topic="rendezvous", found="not needed: several machines get it from what starts the processes")
    host, port = dist.endpoint
    try:
        addresses = sorted({str(info[4][0]) for info in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)})
    except socket.gaierror as error:
        refusal = LaunchError(
            f"dist.rendezvous: the host {host!r} does not resolve on {socket.gethostname()} ({reason_of(error)}); "
            "give a name that all machines know, or an address"
        )
        return Finding(topic="rendezvous", found=str(refusal), error=refusal)
    values = {"host": host, "port": port, "addresses": addresses}
    own = next((address for address in addresses if _failure_to_bind(address, 0) is None), None)
    finding = _elsewhere(host, port, addresses[0]) if own is None else _here(host, port, own)
    return Finding(topic=finding.topic, found=finding.found, error=finding.error, advice=finding.advice, values=values)


def _here(host: str, port: int, address: str) -> Finding:
    code = _failure_to_bind(address, port)
    if code is None:
        return Finding(topic="rendezvous", found=f"{host} is this machine, and port {port} is free")
    if code == errno.EADDRINUSE and _is_store(host, port):
        return Finding(topic="rendezvous", found=f"{host} is this machine, and a run waits at port {port} already")
    why = (
        "is in use by something else"
        if code == errno.EADDRINUSE
        else f"can't be opened ({errno.errorcode.get(code, str(code))})"
    )
    error = LaunchError(f"dist.rendezvous: port {port} of {host}, which is this machine, {why}; choose another port")
    return Finding(topic="rendezvous", found=str(error), error=error)


def _elsewhere(host: str, port: int, address: str) -> Finding:
    try:
        socket.create_connection((address, port), timeout=_SECONDS_TO_ANSWER).close()
    except ConnectionRefusedError:
        found = f"{host} ({address}) can be reached; no run waits at port {port} yet"
        return Finding(topic="rendezvous", found=found, advice=(f"start the same command on {host} too",))
    except OSError as failure:
        found = f"{host} ({address}) does not answer at port {port}: {reason_of(failure)}"
        advice = f"is {host} up, and do firewalls between the machines leave port {port} and those above 32768 open?"
        return Finding(topic="rendezvous", found=found, advice=(advice,))
    if _is_store(host, port):
        return Finding(topic="rendezvous", found=f"a run waits at {host}:{port}")
    error = LaunchError(
        f"dist.rendezvous: {host}:{port} answers, but not as a run does; choose a port that is free on {host}"
    )
    return Finding(topic="rendezvous", found=str(error), error=error)


def _failure_to_bind(address: str, port: int) -> int | None:
    """The errno of binding to this address and port; None if this machine can."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((address, port))
        except OSError as error:
            return error.errno
    return None


def _is_store(host: str, port: int) -> bool:
    """Whether a run's store answers there, which another program can't do."""
    timeout = timedelta(seconds=_SECONDS_TO_ANSWER)
    try:
        run_with_timeout(
            _SECONDS_TO_ANSWER,
            lambda: TCPStore(host, port, is_master=False, wait_for_workers=False, timeout=timeout),
        )
    except (DistError, RuntimeError, ValueError, TimeoutError):
        return False
    return True
