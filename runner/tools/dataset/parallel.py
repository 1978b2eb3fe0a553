"""Applies a function to many images in several processes, holding only a few results in memory."""

from __future__ import annotations

import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from itertools import islice
from multiprocessing import get_context
from typing import Any, ClassVar, Literal, TypeVar

from joblib import cpu_count  # type: ignore[import-untyped]

from runner.base.errors import DeviceError
from runner.data.loader.workers import prepare_worker, start_method

Task = TypeVar("Task")
Result = TypeVar("Result")

_CHUNK = 16
_CHUNKS_PER_WORKER = 3


class _Worker:
    """State of a worker process: the function, sent once at its start because it may be large."""

    function: ClassVar[Callable[[Any], Any]]

    @classmethod
    def start(cls, function: Callable[[Any], Any]) -> None:
        prepare_worker(0)
        cls.function = function

    @classmethod
    def work(cls, tasks: Sequence[Any]) -> list[Any]:
        return [cls.function(task) for task in tasks]


def num_workers(workers: Literal["auto"] | int) -> int:
    """A number as it is; `auto`: the cores that this process may use, or 0 (no processes) where that is one."""
    if workers != "auto":
        return workers
    cores = int(cpu_count())
    return cores if cores > 1 else 0


def in_parallel(
    function: Callable[[Task], Result], tasks: Iterable[Task], workers: int
) -> Iterator[tuple[Task, Result]]:
    """Each task with its result, in the order of the tasks; tasks are taken from their iterator lazily.

    Args:
        function: can be pickled, and returns failures instead of raising.
        tasks: small, and can be pickled.
        workers: number of processes; 0: this process.

    Raises:
        DeviceError: a process died, for example because memory ran out.
    """
    if workers == 0:
        yield from ((task, function(task)) for task in tasks)
        return
    executor = ProcessPoolExecutor(
        workers, mp_context=get_context(start_method()), initializer=_Worker.start, initargs=(function,)
    )
    try:
        yield from _results(executor, iter(tasks), workers)
    except BrokenProcessPool as error:
        raise DeviceError(
            "a process that decodes images died; the usual cause is too little memory: use fewer workers"
        ) from error
    finally:
        executor.shutdown(cancel_futures=True)


def _results(executor: ProcessPoolExecutor, tasks: Iterator[Task], workers: int) -> Iterator[tuple[Task, Any]]:
    pending: deque[tuple[list[Task], Future[list[Any]]]] = deque()
    while True:
        while len(pending) < workers * _CHUNKS_PER_WORKER and (chunk := list(islice(tasks, _CHUNK))):
            with warnings.catch_warnings():
                # Python warns that forking with threads may deadlock; the workers take no locks of other threads.
                warnings.filterwarnings("ignore", ".*use of fork", DeprecationWarning)
                pending.append((chunk, executor.submit(_Worker.work, chunk)))
        if not pending:
            return
        done, future = pending.popleft()
        yield from zip(done, future.result(), strict=True)
