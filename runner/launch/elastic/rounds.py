"""The rendezvous of the elastic agents for each attempt (a start or restart of all processes), and its processes.

PyTorch's own rendezvous handler puts a pickle into the store, so that anybody who can write there runs code, and serves
a second store at all addresses. This one counts the machines in the store that they share already. The agent restarts
after any failure; an error that a restart would repeat must end the run instead.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, NoReturn

from torch.distributed import DistError, PrefixStore  # type: ignore[attr-defined]
from torch.distributed.elastic.rendezvous import (
    RendezvousClosedError,
    RendezvousHandler,
    RendezvousInfo,
    RendezvousParameters,
    RendezvousStoreInfo,
    RendezvousTimeoutError,
    rendezvous_handler_registry,
)

from runner.base import console
from runner.base.console import FILE_ONLY, LOGGER
from runner.base.errors import StoppedOnRequest
from runner.base.process import exit_without_cleanup_after_success, gc_frozen, gc_paused
from runner.dist.addresses import use_interface
from runner.dist.watchdog import die_with_parent
from runner.launch.elastic.machines import CLOSED, Machines
from runner.launch.elastic.pickled_file import PickledFile
from runner.launch.elastic.shared_state import ForwardedStop, SharedState
from runner.launch.environment import AdoptedRank, adopted_rank
from runner.launch.preflight import Ready
from runner.launch.ranks.failure import FailureRecord, record_failure
from runner.run import run_folder
from runner.training.attempt import Result, Work

BACKEND = "runner"
_POLL_SECONDS = 0.1
_SECONDS_BETWEEN_LOOKS = 1.0
# The agent reports the first process that ends, so one that only lost contact to another waits before it ends.
_ECHO_SECONDS = 2.0


class NotRestartedError(Exception):
    """An attempt has failed with an error that a restart would repeat."""


def rendezvous_options(
    machines: Machines, seconds: float, *, may_begin: Callable[[], bool], on_begin: Callable[[], None]
) -> dict[str, Any]:
    """Options of the agent's rendezvous, whose backend must be :data:`BACKEND`.

    Args:
        machines: the connected machines of the run.
        seconds: longest wait for all of them to begin an attempt.
        may_begin: whether an attempt may begin; asked before each attempt, the first one included.
        on_begin: called when all machines are ready for an attempt.
    """
    rendezvous_handler_registry.register(BACKEND, _Rounds)  # may be repeated
    return {"machines": machines, "seconds": seconds, "may_begin": may_begin, "on_begin": on_begin}


class _Rounds(RendezvousHandler):
    """A rendezvous handler with a round for each attempt: a prefix of the store, where all machines have to arrive."""

    def __init__(self, parameters: RendezvousParameters) -> None:
        self._machines: Machines = parameters.config["machines"]
        self._seconds: float = parameters.config["seconds"]
        self._may_begin: Callable[[], bool] = parameters.config["may_begin"]
        self._on_begin: Callable[[], None] = parameters.config["on_begin"]
        self._round = 0
        self._looked_at, self._num_waiting = 0.0, 0

    def next_rendezvous(self) -> RendezvousInfo:
        """Wait until the agents of all machines want to begin the next attempt.

        Raises:
            NotRestartedError: the attempt would only repeat a failure.
            RendezvousClosedError: the run has ended on another machine.
            RendezvousTimeoutError: a machine did not arrive in time.
        """
        if not self._may_begin():
            raise NotRestartedError("a restart would only repeat the error")
        self._round, self._num_waiting = self._round + 1, 0
        space = self._space(self._round)
        space.add("arrived", 1)
        self._wait_for_all(space)
        self._on_begin()
        machines = self._machines
        return RendezvousInfo(
            space, machines.number, machines.count, RendezvousStoreInfo(machines.address, machines.port)
        )

    def _space(self, number: int) -> PrefixStore:
        return PrefixStore(f"runner/round/{number}", self._machines.store)

    def _wait_for_all(self, space: PrefixStore) -> None:
        deadline = time.monotonic() + self._seconds
        while (num_arrived := space.add("arrived", 0)) < self._machines.count:
            if self.is_closed():
                raise RendezvousClosedError("the run has ended on another machine, whose output says why")
            if time.monotonic() > deadline:
                raise RendezvousTimeoutError(
                    f"{num_arrived} of {self._machines.count} machines began attempt {self._round} within "
                    f"{self._seconds:g} seconds (dist.rendezvous_timeout_seconds)"
                )
            time.sleep(_POLL_SECONDS)

    def num_nodes_waiting(self) -> int:
        """Machines that already wait for the next attempt, because their processes failed."""
        now = time.monotonic()
        if self._machines.count > 1 and now - self._looked_at > _SECONDS_BETWEEN_LOOKS:
            self._looked_at, self._num_waiting = now, self._space(self._round + 1).add("arrived", 0)
        return self._num_waiting

    def get_backend(self) -> str:
        return BACKEND

    @property
    def use_agent_store(self) -> bool:
        """Whether the processes use the agents' store, as on several machines, for their rendezvous; else a file."""
        return self._machines.count > 1

    def is_closed(self) -> bool:
        return bool(self._machines.store.check([CLOSED]))

    def set_closed(self) -> None:
        with contextlib.suppress(DistError):  # the machine that serves the store has ended
            self._machines.store.set(CLOSED, "1")

    def get_run_id(self) -> str:
        return self._machines.run_id

    def shutdown(self) -> bool:
        self.set_closed()
        return True


@dataclass(frozen=True, kw_only=True)
class RankOutcome(Generic[Result]):
    """Result of a process that did not fail."""

    result: Result | None
    stopped: str | None
    """Why the process was stopped; None if it was not."""


@dataclass(frozen=True, kw_only=True)
class Assignment(Generic[Result]):
    """Arguments of the processes of a machine."""

    what: PickledFile[tuple[Ready, Work[Result]]]
    folder: Path | None
    """The output folder, where it was made before the processes; else rank 0 makes it."""
    shared_state: SharedState
    records: Path
    """Private folder for the processes' error files, and for the rendezvous file of a single machine."""
    is_shown: bool
    """Whether messages are shown on the terminal."""
    num_machines: int
    """Number of machines of the run."""
    interface: str | None
    """Network interface by which the machines reach each other."""

    @property
    def url(self) -> str:
        """URL of the processes' rendezvous: on a single machine a file, so that no port is opened."""
        if self.num_machines > 1:
            return "env://"
        # A file per attempt, since a killed process may leave an incomplete one.
        return f"file://{self.records}/rendezvous_{os.environ['TORCHELASTIC_RESTART_COUNT']}"


def run_rank(assignment: Assignment[Result]) -> RankOutcome[Result]:
    """Do the work in a new process; after a failure, write an error file and end the process."""
    shared_state = assignment.shared_state
    die_with_parent(shared_state.launcher_pid)
    if assignment.is_shown:
        console.set_up()
    use_interface(assignment.interface)
    place = adopted_rank()
    assert place is not None and place.local_rank is not None and place.world_size is not None, "set by the agent"
    shared_state.set_pid(place.local_rank)
    with ForwardedStop(shared_state) as stop, ExitStack() as stack:
        try:
            with gc_paused():
                from runner.launch.ranks.rank import RankProcess  # noqa: PLC0415 - imports all of the training

                ready, work = assignment.what.read()
                stack.enter_context(gc_frozen())
            process = RankProcess(
                ready=ready,
                work=work,
                folder=assignment.folder,
                rank=place.rank,
                world_size=place.world_size,
                local_rank=place.local_rank,
                url=assignment.url,
                stop=stop,
                on_folder=shared_state.set_folder,
                on_failure=lambda record: _fail(assignment, record, place.local_rank or 0),
            )
            outcome = RankOutcome(result=process.run(), stopped=None)
        except StoppedOnRequest as request:
            outcome = RankOutcome(result=None, stopped=str(request))
        except BaseException as error:
            _end_failed(assignment, place, error)
    exit_without_cleanup_after_success()
    return outcome


def _end_failed(assignment: Assignment[Result], place: AdoptedRank, error: BaseException) -> NoReturn:
    """Write an error file and end this process, but not before a process that caused the failure has ended."""
    shared_state = assignment.shared_state
    log = run_folder.RunFolder(shared_state.folder).log_file(place.rank) if shared_state.folder is not None else None
    record = record_failure(place.rank, error, log)
    record.write(assignment.records)
    LOGGER.error("%s", record.trace, extra=FILE_ONLY)
    shared_state.set_failed(place.local_rank or 0, is_final=record.is_final)
    if record.is_echo:
        time.sleep(_ECHO_SECONDS)
    # Not by an exception: finalizers, of the process group for one, might wait for other processes.
    os._exit(record.exit_code)


def _fail(assignment: Assignment[Result], record: FailureRecord, local_rank: int) -> None:
    record.write(assignment.records)
    assignment.shared_state.set_failed(local_rank)
