"""The life of a process that the elastic agent of this machine has started, and what it leaves to its launcher."""

from __future__ import annotations

import os
import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, NoReturn

from runner.base import console
from runner.base.console import FILE_ONLY, LOGGER
from runner.base.errors import StoppedOnRequest
from runner.base.process import collection_over, collection_paused, heap_set_aside, is_watched
from runner.dist.addresses import keep_to
from runner.dist.watchdog import die_with
from runner.launch.elastic.handed import Handed
from runner.launch.elastic.shared_state import SharedState
from runner.launch.elastic.stop_requests import ForwardedStop
from runner.launch.environment import Place, adopted_place
from runner.launch.preflight import Ready
from runner.launch.ranks.failure import FailureRecord, record_failure
from runner.run import run_folder
from runner.training.work import Result, Work

# Who only lost contact waits for the agent to find the process that died: it reports the first end that it sees.
_ECHO_SECONDS = 2.0


@dataclass(frozen=True, kw_only=True)
class Outcome(Generic[Result]):
    """How a process ended that is no failure."""

    result: Result | None
    stopped: str | None
    """Why it was stopped, where it was."""


@dataclass(frozen=True, kw_only=True)
class Assignment(Generic[Result]):
    """What the processes of a machine are started with."""

    what: Handed[tuple[Ready, Work[Result]]]
    """What to do."""
    folder: Path | None
    """Where to write, where that was made before the processes; else rank 0 makes it."""
    shared_state: SharedState
    records: Path
    """A folder of theirs alone, which others can't enter: of their error files, until there is a run folder."""
    is_shown: bool
    """Whether messages are shown on the terminal."""
    num_machines: int
    """Of all that the run uses."""
    interface: str | None
    """Network interface by which the machines reach each other."""

    @property
    def url(self) -> str:
        """Where the processes of this attempt meet: those of one machine at a file, for which nothing listens."""
        if self.num_machines > 1:
            return "env://"
        # Each attempt has its own: a process that is killed may leave half a line.
        return f"file://{self.records}/meeting_{os.environ['TORCHELASTIC_RESTART_COUNT']}"


def run_rank(assignment: Assignment[Result]) -> Outcome[Result]:
    """Live as one of the processes; a failure leaves an error file and ends the process."""
    shared_state = assignment.shared_state
    die_with(shared_state.launcher_pid)
    if assignment.is_shown:
        console.set_up()
    keep_to(assignment.interface)
    place = adopted_place()
    assert place is not None and place.local_rank is not None and place.world_size is not None, "set by the agent"
    shared_state.enter(place.local_rank)
    with ForwardedStop(shared_state) as stop, ExitStack() as stack:
        try:
            with collection_paused():
                from runner.launch.ranks.rank import Life, Task, live  # noqa: PLC0415 - and all that is trained with

                ready, work = assignment.what.read()
                stack.enter_context(heap_set_aside())
            task = Task(ready=ready, work=work, folder=assignment.folder)
            life = Life(
                rank=place.rank,
                world_size=place.world_size,
                local_rank=place.local_rank,
                url=assignment.url,
                stop=stop,
                on_folder=shared_state.set_folder,
                on_failure=lambda record: _fail(assignment, record, place.local_rank or 0),
            )
            outcome = Outcome(result=live(task, life), stopped=None)
        except StoppedOnRequest as request:
            outcome = Outcome(result=None, stopped=str(request))
        except BaseException as error:
            _end_failed(assignment, place, error)
    if not is_watched():
        collection_over()
    return outcome


def _end_failed(assignment: Assignment[Result], place: Place, error: BaseException) -> NoReturn:
    """Leave an error file and end, so that the agent takes no notice of it before that of the process to blame."""
    shared_state = assignment.shared_state
    log = run_folder.RunFolder(shared_state.folder).log_file(place.rank) if shared_state.folder is not None else None
    record = record_failure(place.rank, error, log)
    record.write(assignment.records)
    LOGGER.error("%s", record.trace, extra=FILE_ONLY)
    shared_state.fail(place.local_rank or 0, is_final=record.is_final)
    if record.is_echo:
        time.sleep(_ECHO_SECONDS)
    # Not by an exception: what still holds on to the others might wait for them.
    os._exit(record.exit_code)


def _fail(assignment: Assignment[Result], record: FailureRecord, local_rank: int) -> None:
    record.write(assignment.records)
    assignment.shared_state.fail(local_rank)
