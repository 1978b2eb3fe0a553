"""Takes this process's place among processes that torchrun, srun, mpirun or Azure have started; starts none."""

from __future__ import annotations

import time
from pathlib import Path

from torch.distributed import DistError

from runner.base.console import LOGGER
from runner.base.errors import RunnerError
from runner.base.stop import StopRequest
from runner.launch.environment import Place, meeting_of
from runner.launch.preflight import Ready
from runner.launch.ranks.failure import as_lost_peer
from runner.launch.ranks.rank import Life, Task, live
from runner.launch.ranks.rendezvous import check_in, connect, facts_of
from runner.training.work import Result, Work

_ECHO_SECONDS = 2.0
_SECONDS_TO_TELL = 30.0


def _do_nothing(*_: object) -> None:
    """Nobody watches the processes of this machine but whoever has started them."""


def live_adopted(ready: Ready, folder: Path | None, work: Work[Result]) -> Result:
    """Do a work as one of many processes that others have started.

    Raises:
        RunnerError: see :func:`runner.launch.ranks.rank.live`.
    """
    plan, place = ready.plan, ready.plan.place
    assert place is not None, "the plan is of this mode"
    task = Task(ready=ready, work=work, folder=folder)
    with StopRequest() as stop:
        life = Life(
            rank=place.rank,
            world_size=plan.world_size,
            local_rank=place.local_rank,
            url=meeting_of(place, ready.config.dist),
            stop=stop,
            on_folder=_do_nothing,
            on_failure=_do_nothing,
        )
        try:
            return live(task, life)
        except Exception as error:
            told = as_lost_peer(error)
            if told is error:
                raise
            # Whoever has started us names the process that ended first; that is not this one.
            time.sleep(_ECHO_SECONDS)
            raise told from error


def tell_refusal(place: Place, error: RunnerError) -> None:
    """Let the others end as well when this process was refused before it had met them.

    Args:
        place: of this process.
        error: by which it was refused.
    """
    if place.world_size is None or place.world_size == 1:
        return
    url = place.meeting
    if url is None:
        return  # Only the config could say where they meet, and it was refused.
    try:
        store = connect(url, place.rank, place.world_size, _SECONDS_TO_TELL)
        check_in(store, place.rank, place.world_size, facts_of(None, None, error), _SECONDS_TO_TELL)
    except (RunnerError, DistError) as answer:
        # As expected: the answer is the refusal itself, or the others have been refused and are gone.
        LOGGER.debug("told the other processes: %s", answer)
