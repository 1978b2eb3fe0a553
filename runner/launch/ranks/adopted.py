"""One rank among processes that torchrun, srun, mpirun or Azure started."""

from __future__ import annotations

import time
from pathlib import Path

from torch.distributed import DistError

from runner.base.console import LOGGER
from runner.base.errors import RunnerError
from runner.base.stop import StopRequest
from runner.launch.environment import AdoptedRank, rendezvous_url
from runner.launch.preflight import Ready
from runner.launch.ranks.failure import as_lost_peer
from runner.launch.ranks.rank import RankProcess
from runner.launch.ranks.rendezvous import assign_ranks, gather_facts, open_rendezvous_store
from runner.training.attempt import Result, Work

_ECHO_SECONDS = 2.0
_SECONDS_TO_TELL = 30.0


def run_adopted(ready: Ready, folder: Path | None, work: Work[Result]) -> Result:
    """Do the work as one of the processes that another program started.

    Raises:
        RunnerError: see :meth:`runner.launch.ranks.rank.RankProcess.run`.
    """
    plan, place = ready.plan, ready.plan.place
    assert place is not None, "the plan's mode is adopted"
    with StopRequest() as stop:
        process = RankProcess(
            ready=ready,
            work=work,
            folder=folder,
            rank=place.rank,
            world_size=plan.world_size,
            local_rank=place.local_rank,
            url=rendezvous_url(place, ready.config.dist),
            stop=stop,
            on_folder=lambda _: None,
            on_failure=lambda _: None,
        )
        try:
            return process.run()
        except Exception as error:
            lost = as_lost_peer(error)
            if lost is error:
                raise
            # torchrun and the like report the process that ends first, which must not be this one.
            time.sleep(_ECHO_SECONDS)
            raise lost from error


def share_refusal(place: AdoptedRank, error: RunnerError) -> None:
    """Let the other processes fail with the error that ended this one before the rendezvous.

    Args:
        place: rank of this process.
        error: the error that ended it.
    """
    url = place.rendezvous
    if url is None or place.world_size is None or place.world_size == 1:
        return  # without a URL, only the config could give one, and it may be what is wrong
    try:
        store = open_rendezvous_store(url, place.rank, place.world_size, _SECONDS_TO_TELL)
        assign_ranks(store, place.rank, place.world_size, gather_facts(None, None, error), _SECONDS_TO_TELL)
    except (RunnerError, DistError) as answer:
        # As expected: rank 0 answers with the error itself, unless the other processes have ended already.
        LOGGER.debug("answer of the other processes: %s", answer)
