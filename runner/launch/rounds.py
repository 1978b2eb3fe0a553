"""Decides at each meeting of the elastic agents whether the processes may be started again.

The agent restarts after any failure; a mistake that the next attempt would only repeat must end the run instead.
Between two attempts it calls its rendezvous, which is the place where PyTorch lets others in.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch.distributed.elastic.rendezvous import (
    RendezvousHandler,
    RendezvousInfo,
    RendezvousParameters,
    rendezvous_handler_registry,
)

BACKEND = "runner"
_OWN_OPTIONS = ("inner", "may_begin", "on_begin")


class NotRestartedError(Exception):
    """An attempt has failed with an error that the next one would meet again."""


def asking(
    inner: str, options: dict[str, Any], *, may_begin: Callable[[], bool], on_begin: Callable[[], None]
) -> dict[str, Any]:
    """Options with which the agent's rendezvous asks before each attempt; its backend must be :data:`BACKEND`.

    Args:
        inner: PyTorch's rendezvous that brings the machines together, c10d or static.
        options: of that rendezvous.
        may_begin: whether an attempt may begin; asked before the machines meet for it, for the first one too.
        on_begin: called when they have met.
    """
    rendezvous_handler_registry.register(BACKEND, _Rounds)  # again and again is fine
    return {**options, "inner": inner, "may_begin": may_begin, "on_begin": on_begin}


class _Rounds(RendezvousHandler):
    """Another rendezvous, with a question before each of its rounds."""

    def __init__(self, parameters: RendezvousParameters) -> None:
        options = {key: value for key, value in parameters.config.items() if key not in _OWN_OPTIONS}
        self._may_begin: Callable[[], bool] = parameters.config["may_begin"]
        self._on_begin: Callable[[], None] = parameters.config["on_begin"]
        self._inner = rendezvous_handler_registry.create_handler(
            RendezvousParameters(
                backend=parameters.config["inner"],
                endpoint=parameters.endpoint,
                run_id=parameters.run_id,
                min_nodes=parameters.min_nodes,
                max_nodes=parameters.max_nodes,
                local_addr=parameters.local_addr,
                **options,
            )
        )

    def next_rendezvous(self) -> RendezvousInfo:
        if not self._may_begin():
            raise NotRestartedError("a named error is no reason to start again")
        met = self._inner.next_rendezvous()
        self._on_begin()
        return met

    def get_backend(self) -> str:
        return BACKEND

    @property
    def use_agent_store(self) -> bool:
        return self._inner.use_agent_store

    def is_closed(self) -> bool:
        return self._inner.is_closed()

    def set_closed(self) -> None:
        self._inner.set_closed()  # type: ignore[no-untyped-call]

    def num_nodes_waiting(self) -> int:
        return self._inner.num_nodes_waiting()

    def get_run_id(self) -> str:
        return self._inner.get_run_id()

    def shutdown(self) -> bool:
        return self._inner.shutdown()
