"""One function on many images, in several processes, with little of it in memory at a time."""

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
    """What a worker process works at: given to it once, at its start, because it may be large."""

    function: ClassVar[Callable[[Any], Any]]

    @classmethod
    def start(cls, function: Callable[[Any], Any]) -> None:
        prepare_worker(0)
        cls.function = function

    @classmethod
    def work(cls, tasks: Sequence[Any]) -> list[Any]:
        return [cls.function(task) for task in tasks]


def num_workers(workers: Literal["auto"] | int) -> int:
    """A number as it is; `auto`: the cores that this process may use, or none where that is one."""
    if workers != "auto":
        return workers
    cores = int(cpu_count())
    return cores if cores > 1 else 0


def in_parallel(
    function: Callable[[Task], Result], tasks: Iterable[Task], workers: int
) -> Iterator[tuple[Task, Result]]:
    """Each task with its result, in the order of the tasks, which are taken from their iterator as they are needed.

    Args:
        function: pickles, and raises nothing: a failure is a result.
        tasks: small, and pickle.
        workers: processes; 0 does all in this one.

    Raises:
        DeviceError: a process died, as for want of memory.
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
                # Python 3.12 and later: forking with threads may deadlock. Workers touch nothing that others lock.
                warnings.filterwarnings("ignore", ".*use of fork", DeprecationWarning)
                pending.append((chunk, executor.submit(_Worker.work, chunk)))
        if not pending:
            return
        done, future = pending.popleft()
        yield from zip(done, future.result(), strict=True)
