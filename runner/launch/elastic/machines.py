"""How machines on which the same command was typed find each other before any process is started.

One of them serves a store, at the one address by which the others reach it. Over it they compare what they were asked
for, so that a disagreement is said in words instead of ending in a timeout, and number each other. What they tell is
JSON: whoever reaches the store can write there, and must not thereby run code.
"""

from __future__ import annotations

import contextlib
import errno
import json
import secrets
import socket
import time
from dataclasses import dataclass, field
from datetime import timedelta

from torch.distributed import DistError, HashStore  # type: ignore[attr-defined]
from torch.distributed.distributed_c10d import Store

from runner.base.errors import LaunchError
from runner.base.time_limit import within
from runner.base.untrusted import UntrustedFileError, parse_json, printable
from runner.config.schema import Config
from runner.dist.addresses import (
    ANY,
    Endpoint,
    address_towards,
    find_endpoint,
    interface_of,
    loopback_interface,
    other_addresses,
)
from runner.dist.stores import connect, serve
from runner.launch.plan import LaunchPlan

_TRY_SECONDS = 2.0
_POLL_SECONDS = 0.2
_READ_SECONDS = 30  # longest answer of the store, beyond which a machine takes the others for lost
_MOST_SECONDS_TO_RESOLVE = 10
CLOSED = "runner/closed"
"""Is in the store once the run has ended on any machine."""


@dataclass(frozen=True, kw_only=True)
class Machines:
    """The machines of a run, as this one sees them."""

    run_id: str
    number: int
    """Of this machine, from 0."""
    count: int
    """How many there are."""
    store: Store = field(repr=False)
    """Where their elastic agents meet; of one machine, within this process."""
    address: str
    """Where this machine reaches the store."""
    port: int
    interface: str | None
    """Network interface by which this machine reaches the others; gloo would look up the host's own name, which may be
    a loopback one."""


def one_machine() -> Machines:
    """A run of this machine alone: nothing listens."""
    return Machines(
        run_id=secrets.token_hex(8),
        number=0,
        count=1,
        store=HashStore(),
        address="127.0.0.1",
        port=0,
        interface=loopback_interface(),
    )


def meet_machines(config: Config, plan: LaunchPlan) -> Machines:
    """Wait for the other machines and compare what each was asked for.

    Raises:
        LaunchError: the host does not resolve or does not answer in time, the port is in use, machines are missing, or
            they were asked for different things.
    """
    dist = config.dist
    assert dist.endpoint is not None, "the plan has seen to it"
    seconds = dist.rendezvous_timeout_seconds
    endpoint = find_endpoint(*dist.endpoint, min(seconds, _MOST_SECONDS_TO_RESOLVE))
    _check_own(endpoint, config)
    deadline = time.monotonic() + seconds
    # Two numbers may be given to launchers on one machine.
    may_serve = endpoint.own is not None and dist.node_rank in (None, 0)
    store, is_server = _open_store(endpoint, may_serve=may_serve, deadline=deadline, config=config)
    where = f"{endpoint.host}:{endpoint.port}"
    try:
        seconds_left = max(0, deadline - time.monotonic()) + _READ_SECONDS
        number = within(seconds_left, lambda: _compare(store, config, plan, is_server=is_server, deadline=deadline))
        run_id = store.get("runner/run").decode()
    except TimeoutError as error:
        raise LaunchError(
            f"{where} does not answer any more ({error}): is that machine frozen, or the run stopped there?"
        ) from error
    except DistError as error:
        raise LaunchError(f"lost contact with {where}: the run has ended there, whose output says why") from error
    except (UntrustedFileError, UnicodeDecodeError, TypeError, KeyError, IndexError) as error:
        raise LaunchError(
            f"what is told at {where} is not what a run tells ({printable(str(error))}): somebody else writes there; "
            "choose another port, and see who reaches this network"
        ) from error
    return Machines(
        run_id=f"runner-{run_id}",
        number=number,
        count=plan.num_nodes,
        store=store,
        address=endpoint.target,
        port=endpoint.port,
        interface=interface_of(endpoint.own or address_towards(endpoint.host, endpoint.port)),
    )


def _check_own(endpoint: Endpoint, config: Config) -> None:
    """Refuse a host that is not the machine it is taken for, or not one address of it."""
    given = config.dist.rendezvous
    if config.dist.node_rank == 0 and endpoint.own is None:
        raise LaunchError(
            f"dist.node_rank = 0 is the machine that dist.rendezvous = {given!r} names, but {endpoint.host} "
            f"is not {socket.gethostname()}; give this machine another number, or name it there"
        )
    if endpoint.own == ANY:
        raise LaunchError(
            f"dist.rendezvous = {given!r}: {endpoint.host} is this machine, but only by a loopback address, "
            f"and it has several others: {', '.join(other_addresses())}; give the one that the other machines reach, "
            "on all machines"
        )


def _open_store(endpoint: Endpoint, *, may_serve: bool, deadline: float, config: Config) -> tuple[Store, bool]:
    """The store where the machines meet, and whether this process serves it."""
    seconds = config.dist.rendezvous_timeout_seconds
    served = _served(endpoint) if may_serve else None
    if served is not None:
        return served, True
    while True:
        try:
            # On the host too: several launchers of one run may share it, as on a workstation that plays a cluster.
            seconds_left = max(_POLL_SECONDS, deadline - time.monotonic())
            return _connected(endpoint.target, endpoint.port, min(seconds_left, 2 * _TRY_SECONDS)), False
        except (DistError, RuntimeError, TimeoutError) as error:
            if may_serve:
                raise LaunchError(
                    f"dist.rendezvous: port {endpoint.port} of {socket.gethostname()} is in use by another program; "
                    "end it, or choose another port, on all machines"
                ) from error
            if time.monotonic() > deadline:
                raise LaunchError(
                    f"dist.rendezvous = {endpoint.host}:{endpoint.port} did not answer within {seconds:g} seconds "
                    "(dist.rendezvous_timeout_seconds); is the run started on that machine too, and is the port open?"
                ) from error
            time.sleep(_POLL_SECONDS)


def _served(endpoint: Endpoint) -> Store | None:
    """The store, served by this process; None where the port is in use."""
    assert endpoint.own, "it is one address of this machine"
    try:
        return serve(endpoint.own, endpoint.port, seconds=_READ_SECONDS)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            return None
        raise LaunchError(f"dist.rendezvous: port {endpoint.port} can't be opened here: {error.strerror}") from error


def _connected(host: str, port: int, seconds: float) -> Store:
    """A client of the store of a run that has not ended.

    Raises:
        DistError, RuntimeError, TimeoutError: when nothing, or something else, answers there.
    """

    def come() -> Store:
        store = connect(host, port, seconds=_TRY_SECONDS)
        if store.check([CLOSED]):
            raise TimeoutError("the run there has ended")  # The next one, of a sweep, is about to begin.
        return store

    store = within(seconds, come)
    store.set_timeout(timedelta(seconds=_READ_SECONDS))
    return store


def _compare(store: Store, config: Config, plan: LaunchPlan, *, is_server: bool, deadline: float) -> int:
    """Wait until all machines are there and agree on their number; returns which of them this one is."""
    seconds, host = config.dist.rendezvous_timeout_seconds, socket.gethostname()
    store.compare_set("runner/run", "", secrets.token_hex(8))
    wanted = {"nodes": plan.num_nodes, "host": host}
    first = parse_json(store.compare_set("runner/first", "", json.dumps(wanted)).decode(), "runner/first")
    if first["nodes"] != plan.num_nodes:
        message = f"{first['host']} has dist.nodes = {first['nodes']}, but {host} has {plan.num_nodes}"
        store.set("runner/refused", message)
    # Only now: whoever sees that all are there also sees what they said.
    own = store.add("runner/number", 1)
    told = {"host": host, "number": config.dist.node_rank, "serves": is_server}
    store.set(f"runner/machine/{own}", json.dumps(told))
    store.add("runner/machines", 1)
    while not store.check(["runner/refused"]) and store.add("runner/machines", 0) < plan.num_nodes:
        if time.monotonic() > deadline:
            raise LaunchError(
                f"dist.nodes = {plan.num_nodes}, but {store.add('runner/machines', 0)} machines came within "
                f"{seconds:g} seconds (dist.rendezvous_timeout_seconds); start the same command on the others"
            )
        time.sleep(_POLL_SECONDS)
    if store.add("runner/machines", 0) > plan.num_nodes:
        store.set(
            "runner/refused", f"dist.nodes = {plan.num_nodes}, but more machines came: an earlier run still lives?"
        )
    numbers = _numbered(store, plan.num_nodes) if not store.check(["runner/refused"]) else {}
    if store.check(["runner/refused"]):
        reason = printable(store.get("runner/refused").decode())
        with contextlib.suppress(DistError):  # The machine that serves the store has seen that all have read, and left.
            _stay_until_read(store)
        raise LaunchError(f"the machines disagree: {reason}; start all with the same command")
    return numbers[own]


def _numbered(store: Store, count: int) -> dict[int, int]:
    """Which number each machine gets, by the order in which they came: its own, or one that is left.

    Of those without one of their own the machine that serves the store comes first.
    """
    everyone = {
        come: parse_json(store.get(f"runner/machine/{come}").decode(), f"runner/machine/{come}")
        for come in range(1, count + 1)
    }
    numbers = {come: int(told["number"]) for come, told in everyone.items() if told["number"] is not None}
    for come, told in everyone.items():
        twin = next((other for other in numbers if other < come and numbers[other] == numbers.get(come)), None)
        if twin is not None:
            message = f"{everyone[twin]['host']} and {told['host']} both have dist.node_rank = {numbers[come]}"
            store.set("runner/refused", message)
    others = sorted((come for come in everyone if come not in numbers), key=lambda come: not everyone[come]["serves"])
    free = [number for number in range(count) if number not in numbers.values()]
    return numbers | dict(zip(others, free, strict=False))


def _stay_until_read(store: Store) -> None:
    """The store lives in one of the launchers, which must not leave before the others have read why."""
    store.add("runner/readers", 1)
    deadline = time.monotonic() + _TRY_SECONDS
    # A disagreement has two sides, of which one may not be counted yet.
    while store.add("runner/readers", 0) < max(2, store.add("runner/machines", 0)) and time.monotonic() < deadline:
        time.sleep(_POLL_SECONDS)
