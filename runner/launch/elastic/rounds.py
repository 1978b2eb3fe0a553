"""Brings the elastic agents of all machines together for each attempt, and decides whether another one may begin.

PyTorch's own rendezvous does that with a pickle in the store, so that whoever reaches the store runs code, and serves
a second store at all addresses. Ours counts who has come, in the store that the machines share already. The agent
restarts after any failure; a mistake that the next attempt would only repeat must end the run instead.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from typing import Any

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

from runner.launch.elastic.machines import CLOSED, Machines

BACKEND = "runner"
_POLL_SECONDS = 0.1
_SECONDS_BETWEEN_LOOKS = 1.0


class NotRestartedError(Exception):
    """An attempt has failed with an error that the next one would meet again."""


def asking(
    machines: Machines, seconds: float, *, may_begin: Callable[[], bool], on_begin: Callable[[], None]
) -> dict[str, Any]:
    """Options of the agent's rendezvous, whose backend must be :data:`BACKEND`.

    Args:
        machines: those of the run, which have met already.
        seconds: longest wait for all of them to begin an attempt.
        may_begin: whether an attempt may begin; asked before the machines meet for it, for the first one too.
        on_begin: called when they have met.
    """
    rendezvous_handler_registry.register(BACKEND, _Rounds)  # again and again is fine
    return {"machines": machines, "seconds": seconds, "may_begin": may_begin, "on_begin": on_begin}


class _Rounds(RendezvousHandler):
    """Each attempt is a round: a part of the store in which all machines have to arrive."""

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
            NotRestartedError: this one would only repeat a failure.
            RendezvousClosedError: the run has ended on another machine.
            RendezvousTimeoutError: not all have come in time.
        """
        if not self._may_begin():
            raise NotRestartedError("a named error is no reason to start again")
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
        """Machines that wait for the next attempt already, because their processes have failed."""
        now = time.monotonic()
        if self._machines.count > 1 and now - self._looked_at > _SECONDS_BETWEEN_LOOKS:
            self._looked_at, self._num_waiting = now, self._space(self._round + 1).add("arrived", 0)
        return self._num_waiting

    def get_backend(self) -> str:
        return BACKEND

    @property
    def use_agent_store(self) -> bool:
        """The processes of several machines meet at the agents' store; those of one at a file."""
        return self._machines.count > 1

    def is_closed(self) -> bool:
        return bool(self._machines.store.check([CLOSED]))

    def set_closed(self) -> None:
        with contextlib.suppress(DistError):  # The machine that serves the store has ended before.
            self._machines.store.set(CLOSED, "1")

    def get_run_id(self) -> str:
        return self._machines.run_id

    def shutdown(self) -> bool:
        self.set_closed()
        return True
