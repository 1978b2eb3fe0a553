"""Ends a process that was asked to stop and hangs."""

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
_SECONDS_TO_REPORT = 5.0  # the report may hang as well, on the same disk


def grace_seconds(config: Config) -> float:
    """How long a stop may take; in a SLURM job at most until its time limit, of which SLURM warns."""
    seconds, dist = config.trainer.grace_seconds, config.dist
    return min(seconds, dist.slurm.warning_seconds) if dist.launcher == "submitted" else seconds


@contextmanager
def exit_after_grace(
    config: Config,
    stop: StopRequest,
    log: Path,
    advice_if_killed: str,
    on_overrun: Callable[[GraceExceededError], None],
) -> Iterator[None]:
    """End this process if the block takes longer than trainer.grace_seconds after a request to stop.

    A checkpoint that is being written is lost, but none is ever damaged: the last step of writing is a rename.

    Args:
        config: of the run.
        stop: tells whether to stop.
        log: the stacks of all threads are appended here.
        advice_if_killed: a sentence on what is saved and how to continue.
        on_overrun: called with the error, on another thread and for some seconds at most, before the process ends.
    """
    is_over = threading.Event()
    seconds = grace_seconds(config)

    def watch() -> None:
        while not stop.is_wanted:
            if is_over.wait(_TICK_SECONDS):
                return
        if not is_over.wait(seconds):
            _end(_overrun(stop, seconds, log, advice_if_killed), log, on_overrun)

    thread = threading.Thread(target=watch, name="grace", daemon=True)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()


def report_overrun(run_dir: Path, log: Path, num_earlier: int, error: GraceExceededError) -> None:
    """Report the end of a single process, on the terminal first: writing to the run folder may hang."""
    show_error(error)
    correct_record(run_dir, record_failure(0, error, log), num_earlier)
    LOGGER.error("%s", error, extra=FILE_ONLY)


def _overrun(stop: StopRequest, seconds: float, log: Path, advice_if_killed: str) -> GraceExceededError:
    is_writing = _main_thread_is_in(checkpoint_writer.__name__)
    what = "a checkpoint was still being written" if is_writing else "the process did not get to the end of a step"
    return GraceExceededError(
        f"asked to stop ({stop.received or 'by a signal'}), but not done within {seconds:g} seconds "
        f"(trainer.grace_seconds): {what}; the stacks of its threads are in {log}. {advice_if_killed}"
    )


def _main_thread_is_in(module: str) -> bool:
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    while frame is not None and frame.f_globals.get("__name__") != module:
        frame = frame.f_back
    return frame is not None


def _end(error: GraceExceededError, log: Path, on_overrun: Callable[[GraceExceededError], None]) -> None:
    def report() -> None:
        on_overrun(error)
        with log.open("a", encoding="utf-8") as file:
            faulthandler.dump_traceback(file, all_threads=True)

    reporter = threading.Thread(target=report, name="overrun", daemon=True)
    reporter.start()
    reporter.join(_SECONDS_TO_REPORT)
    # Not by an exception, which the main thread, hanging, would never raise.
    os._exit(error.exit_code)
