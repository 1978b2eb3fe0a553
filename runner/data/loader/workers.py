"""Loader processes: their number, how they start, and how they handle signals."""

from __future__ import annotations

import gc
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

from joblib import cpu_count  # type: ignore[import-untyped]

_MAX_WORKERS_GPU = 16
_MAX_WORKERS_CPU = 4
_SECONDS_BETWEEN_CHECKS = 1.0
_NOT_FOR_WORKERS = tuple(getattr(signal, name) for name in ("SIGINT", "SIGUSR1", "SIGUSR2") if hasattr(signal, name))


def resolve_workers(
    workers: Literal["auto"] | int, device_type: str, num_local_processes: int, *, num_cores: int | None = None
) -> int:
    """Loader processes for each training process.

    `auto` divides the cores of this machine between its training processes:
    - Training on the CPU needs the cores itself: up to 2 cores per process there are no loader processes (the training
      process loads images between its steps; JPEGs with as many threads as it computes with), else one for 4 cores, at
      most 4.
    - On GPUs one for each core but one, at least 1 and at most 16.

    Args:
        workers: data.workers.
        device_type: cpu, cuda or mps.
        num_local_processes: training processes on this machine. Where the launcher has bound each process to cores of
            its own, as srun does with --cpus-per-task, 1.
        num_cores: cores that this process may use; by default what CPU affinity and the limits of a container leave.
    """
    if workers != "auto":
        return workers
    cores = (cpu_count() if num_cores is None else num_cores) // num_local_processes
    if device_type == "cpu":
        return 0 if cores <= 2 else min(cores // 4, _MAX_WORKERS_CPU)
    return min(max(cores - 1, 1), _MAX_WORKERS_GPU)


def start_method() -> Literal["fork", "spawn"]:
    """Fork on Linux, where loader processes share the index with their parent; unsafe on macOS and Windows."""
    return "fork" if sys.platform == "linux" else "spawn"


@contextmanager
def signals_blocked() -> Iterator[None]:
    """Block signals while loader processes start, which would otherwise die of one before `prepare_worker` has run.

    Loader processes inherit the mask; this process receives blocked signals afterwards.
    """
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {*_NOT_FOR_WORKERS, signal.SIGTERM})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def prepare_worker(_worker: int) -> None:
    """Initialise a loader process: it ignores signals, as only the training process decides whether a run stops.

    A terminal, SLURM or systemd signals all processes of a job. If loader processes died of that, the training process
    could not finish its step. They end when the training process ends or is killed, even in the middle of a read: it
    sends SIGTERM, and on Linux they check every second whether it exists (torch checks between two batches only). torch
    limits each of them to one thread.
    """
    # The garbage collector would write to memory that is shared with the parent, and thereby copy it.
    gc.freeze()
    for number in _NOT_FOR_WORKERS:
        signal.signal(number, signal.SIG_IGN)
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _NOT_FOR_WORKERS)
    if sys.platform == "linux":
        # Blocked in all threads and received by one, because a Python signal handler does not get the sender.
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
        parent = multiprocessing.parent_process()
        assert parent is not None and parent.pid is not None, "this runs in a child"
        threading.Thread(target=_end_with_parent, args=(parent.pid,), daemon=True).start()


def _end_with_parent(parent: int) -> None:
    while os.getppid() == parent:
        received = signal.sigtimedwait({signal.SIGTERM}, _SECONDS_BETWEEN_CHECKS)
        if received is not None and received.si_pid == parent:
            break
    # Like torch's own handler. Status 0, so that the parent, which sent the signal, does not report a crash.
    os._exit(0)
