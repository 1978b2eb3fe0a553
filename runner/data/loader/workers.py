"""The processes that load images: how many, and how they behave when somebody sends a signal."""

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
_SECONDS_BETWEEN_LOOKS = 1.0
_NOT_FOR_WORKERS = tuple(getattr(signal, name) for name in ("SIGINT", "SIGUSR1", "SIGUSR2") if hasattr(signal, name))


def resolve_workers(
    workers: Literal["auto"] | int, device_type: str, num_local_processes: int, *, num_cores: int | None = None
) -> int:
    """Loader processes for each training process.

    A number is taken as it is. `auto` shares the cores of this machine between its training processes:
    - Training on the CPU needs the cores itself: none for up to 2 cores per process (images are then loaded in the
      training process, between its steps; JPEGs by as many threads as it computes with), else a quarter of them, at
      most 4.
    - On GPUs all cores but one, at least 1 and at most 16.

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
    """How loader processes start: forked they share the index with their parent; macOS and Windows can't safely."""
    return "fork" if sys.platform == "linux" else "spawn"


@contextmanager
def signals_held() -> Iterator[None]:
    """Around the start of loader processes: they must not die of a signal before they know what to do about it.

    They inherit that these are held until `prepare_worker` has run; this process gets them when the start is over.
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
    """Runs first in each loader process: whether a run stops is decided by the training process alone.

    A terminal, SLURM or systemd signals all processes of a job. If loaders died of that, the training process could
    not finish its step. When the training process itself ends or is killed they still end, even in the middle of a
    read: it sends SIGTERM, and on Linux they look every second whether it is there (torch alone looks between two
    batches). Torch already limits each of them to one thread.
    """
    # What was forked is shared with the parent as long as it is not written to, which the garbage collector does.
    gc.freeze()
    for number in _NOT_FOR_WORKERS:
        signal.signal(number, signal.SIG_IGN)
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _NOT_FOR_WORKERS)
    if sys.platform == "linux":
        # Blocked everywhere and fetched by one thread, because a handler in Python is not told who sent it.
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
        parent = multiprocessing.parent_process()
        assert parent is not None and parent.pid is not None, "this runs in a child"
        threading.Thread(target=_end_with_parent, args=(parent.pid,), daemon=True).start()


def _end_with_parent(parent: int) -> None:
    while os.getppid() == parent:
        received = signal.sigtimedwait({signal.SIGTERM}, _SECONDS_BETWEEN_LOOKS)
        if received is not None and received.si_pid == parent:
            break
    # As torch's own handler does. Status 0: the parent wants this, and must not take it for a crash.
    os._exit(0)
