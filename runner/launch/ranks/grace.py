"""Ends a process that was asked to stop and does not come to it: what it waits for may never come."""

from __future__ import annotations

import faulthandler
import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from runner.base.console import FILE_ONLY, LOGGER, show_error
from runner.base.errors import GraceExceededError
from runner.base.stop import StopRequest
from runner.config.schema import Config
from runner.launch.ranks.failure import correct_record, record_failure
from runner.run import checkpoint_writer

_TICK_SECONDS = 0.2
# The disk that the process waits for may be the one to write the reason to.
_SECONDS_TO_TELL = 5.0


def grace_seconds(config: Config) -> float:
    """How long a stop may take: SLURM, which warns before a job's time is up, gives no more than that."""
    seconds, dist = config.trainer.grace_seconds, config.dist
    return min(seconds, dist.slurm.warning_seconds) if dist.launcher == "submitted" else seconds


@contextmanager
def ended_in_time(
    config: Config, stop: StopRequest, log: Path, if_cut: str, on_overrun: Callable[[GraceExceededError], None]
) -> Iterator[None]:
    """End this process when the block is not left within trainer.grace_seconds of a request to stop.

    Nothing that is written can be left half-written by this: a checkpoint counts once it is renamed.

    Args:
        config: of the run.
        stop: tells that a stop is wanted.
        log: gets the stacks of all threads.
        if_cut: a sentence on what stands and how to go on.
        on_overrun: called with the reason, on another thread and for some seconds at most; the process ends after it.
    """
    is_over = threading.Event()
    seconds = grace_seconds(config)

    def watch() -> None:
        while not stop.is_wanted:
            if is_over.wait(_TICK_SECONDS):
                return
        if not is_over.wait(seconds):
            _end(_overrun(stop, seconds, log, if_cut), log, on_overrun)

    thread = threading.Thread(target=watch, name="grace", daemon=True)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()


def tell_alone(run_dir: Path, log: Path, error: GraceExceededError, num_earlier: int) -> None:
    """Say why a run of one process ends, on the terminal first: the run folder may be what hangs."""
    show_error(error)
    correct_record(run_dir, record_failure(0, error, log), num_earlier)
    LOGGER.error("%s", error, extra=FILE_ONLY)


def _overrun(stop: StopRequest, seconds: float, log: Path, if_cut: str) -> GraceExceededError:
    is_writing = _main_thread_is_in(checkpoint_writer.__name__)
    what = "a checkpoint was still being written" if is_writing else "the process did not get to the end of a step"
    return GraceExceededError(
        f"asked to stop ({stop.received or 'by a signal'}), but not done within {seconds:g} seconds "
        f"(trainer.grace_seconds): {what}; the stacks of its threads are in {log}. {if_cut}"
    )


def _main_thread_is_in(module: str) -> bool:
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    while frame is not None and frame.f_globals.get("__name__") != module:
        frame = frame.f_back
    return frame is not None


def _end(error: GraceExceededError, log: Path, on_overrun: Callable[[GraceExceededError], None]) -> None:
    def tell() -> None:
        on_overrun(error)
        with log.open("a", encoding="utf-8") as file:
            faulthandler.dump_traceback(file, all_threads=True)

    teller = threading.Thread(target=tell, name="last words", daemon=True)
    teller.start()
    teller.join(_SECONDS_TO_TELL)
    # Not by an exception: the thread that could raise it is the one that hangs.
    os._exit(error.exit_code)
