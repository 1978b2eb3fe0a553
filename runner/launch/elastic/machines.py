"""How the machines of a run, on each of which the same command was typed, connect before they start any process.

One of them serves a store, at the address by which the others reach it. There they compare their configs, so that a
difference ends in a clear message instead of a timeout, and get their node ranks. The values are JSON, not pickles,
since anybody who reaches the store can write there.
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
from runner.base.reasons import reason_of
from runner.base.stop import run_with_timeout
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
from runner.dist.stores import connect_store, serve_store
from runner.launch.plan import LaunchPlan

_TRY_SECONDS = 2.0
_POLL_SECONDS = 0.2
_READ_SECONDS = 30  # longest wait for an answer of the store
_MOST_SECONDS_TO_RESOLVE = 10
CLOSED = "runner/closed"
"""Is in the store once the run has ended on any machine."""


@dataclass(frozen=True, kw_only=True)
class Machines:
    """The machines of a run, from the view of this one."""

    run_id: str
    number: int
    """Node rank of this machine, from 0."""
    count: int
    """Number of machines."""
    store: Store = field(repr=False)
    """For the rendezvous of the elastic agents; of a single machine, within this process."""
    address: str
    """Address of the store for this machine."""
    port: int
    interface: str | None
    """Network interface by which this machine reaches the others; by default gloo would use the one of the host name,
    which may be loopback."""


def single_machine() -> Machines:
    """A run on this machine alone, without any open port."""
    return Machines(
        run_id=secrets.token_hex(8),
        number=0,
        count=1,
        store=HashStore(),
        address="127.0.0.1",
        port=0,
        interface=loopback_interface(),
    )


def connect_machines(config: Config, plan: LaunchPlan) -> Machines:
    """Wait for the other machines, and compare number of machines and node ranks.

    Raises:
        LaunchError: the host does not resolve or does not answer in time, the port is in use, machines are missing, or
            their configs differ.
    """
    dist = config.dist
    assert dist.endpoint is not None, "choose_launch has checked it"
    seconds = dist.rendezvous_timeout_seconds
    endpoint = find_endpoint(*dist.endpoint, min(seconds, _MOST_SECONDS_TO_RESOLVE))
    _check_own(endpoint, config)
    deadline = time.monotonic() + seconds
    # Two launchers with different node ranks may share a machine.
    may_serve = endpoint.own is not None and dist.node_rank in (None, 0)
    store, is_server = _open_store(endpoint, may_serve=may_serve, deadline=deadline, config=config)
    where = f"{endpoint.host}:{endpoint.port}"
    try:
        seconds_left = max(0, deadline - time.monotonic()) + _READ_SECONDS
        number = run_with_timeout(
            seconds_left, lambda: _compare(store, config, plan, is_server=is_server, deadline=deadline)
        )
        run_id = store.get("runner/run").decode()
    except TimeoutError as error:
        raise LaunchError(
            f"{where} does not answer any more ({error}): does that machine hang, or was the run stopped there?"
        ) from error
    except DistError as error:
        raise LaunchError(f"lost contact with {where}: the run has ended there; its output says why") from error
    except (UntrustedFileError, UnicodeDecodeError, TypeError, KeyError, IndexError) as error:
        raise LaunchError(
            f"{where} holds what no run writes ({printable(str(error))}): another program writes there; choose another "
            "port, and check who can reach this network"
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
    """Check that dist.rendezvous names the machine with node rank 0, by an address that the others can reach."""
    given = config.dist.rendezvous
    if config.dist.node_rank == 0 and endpoint.own is None:
        raise LaunchError(
            f"dist.node_rank = 0 is the machine that dist.rendezvous = {given!r} names, but {endpoint.host} "
            f"is not {socket.gethostname()}; give this machine another dist.node_rank, or name it there"
        )
    if endpoint.own == ANY:
        raise LaunchError(
            f"dist.rendezvous = {given!r}: {endpoint.host} is this machine, but only by a loopback address, "
            f"and it has several others: {', '.join(other_addresses())}; give the one that the other machines reach, "
            "on all machines"
        )


def _open_store(endpoint: Endpoint, *, may_serve: bool, deadline: float, config: Config) -> tuple[Store, bool]:
    """The machines' store, and whether this process serves it."""
    seconds = config.dist.rendezvous_timeout_seconds
    served = _served(endpoint) if may_serve else None
    if served is not None:
        return served, True
    while True:
        try:
            # On the serving machine too, since several launchers of a run may share a machine.
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
    assert endpoint.own, "only called with an address of this machine"
    try:
        return serve_store(endpoint.own, endpoint.port, seconds=_READ_SECONDS)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            return None
        raise LaunchError(f"dist.rendezvous: port {endpoint.port} can't be opened here: {reason_of(error)}") from error


def _connected(host: str, port: int, seconds: float) -> Store:
    """A client of the store of a run that has not ended.

    Raises:
        DistError, RuntimeError, TimeoutError: nothing, or another program, answers there.
    """

    def connect_once() -> Store:
        store = connect_store(host, port, seconds=_TRY_SECONDS)
        if store.check([CLOSED]):
            raise TimeoutError("the run there has ended")  # the next one of a sweep is about to begin
        return store

    store = run_with_timeout(seconds, connect_once)
    store.set_timeout(timedelta(seconds=_READ_SECONDS))
    return store


def _compare(store: Store, config: Config, plan: LaunchPlan, *, is_server: bool, deadline: float) -> int:
    """Wait until all machines are connected and agree on their number; returns the node rank of this one."""
    seconds, host = config.dist.rendezvous_timeout_seconds, socket.gethostname()
    store.compare_set("runner/run", "", secrets.token_hex(8))
    wanted = {"nodes": plan.num_nodes, "host": host}
    first = parse_json(store.compare_set("runner/first", "", json.dumps(wanted)).decode(), "runner/first")
    if first["nodes"] != plan.num_nodes:
        message = f"{first['host']} has dist.nodes = {first['nodes']}, but {host} has {plan.num_nodes}"
        store.set("runner/refused", message)
    # Before this machine is counted: a machine that counts all of them can then read all values.
    own = store.add("runner/number", 1)
    values = {"host": host, "number": config.dist.node_rank, "serves": is_server}
    store.set(f"runner/machine/{own}", json.dumps(values))
    store.add("runner/machines", 1)
    while not store.check(["runner/refused"]) and store.add("runner/machines", 0) < plan.num_nodes:
        if time.monotonic() > deadline:
            raise LaunchError(
                f"dist.nodes = {plan.num_nodes}, but {store.add('runner/machines', 0)} machines connected within "
                f"{seconds:g} seconds (dist.rendezvous_timeout_seconds); start the same command on the others"
            )
        time.sleep(_POLL_SECONDS)
    if store.add("runner/machines", 0) > plan.num_nodes:
        store.set(
            "runner/refused",
            f"dist.nodes = {plan.num_nodes}, but more machines connected: is an earlier run still alive?",
        )
    numbers = _numbered(store, plan.num_nodes) if not store.check(["runner/refused"]) else {}
    if store.check(["runner/refused"]):
        reason = printable(store.get("runner/refused").decode())
        with contextlib.suppress(DistError):  # the serving machine has ended, as all have read the reason
            _stay_until_read(store)
        raise LaunchError(f"the machines disagree: {reason}; start all with the same command")
    return numbers[own]


def _numbered(store: Store, count: int) -> dict[int, int]:
    """Node rank of each machine, by its position in the order of arrival: dist.node_rank, or one that is left.

    Of the machines without dist.node_rank, the one that serves the store comes first.
    """
    machines = {
        arrival: parse_json(store.get(f"runner/machine/{arrival}").decode(), f"runner/machine/{arrival}")
        for arrival in range(1, count + 1)
    }
    numbers = {arrival: int(values["number"]) for arrival, values in machines.items() if values["number"] is not None}
    for arrival, values in machines.items():
        twin = next((other for other in numbers if other < arrival and numbers[other] == numbers.get(arrival)), None)
        if twin is not None:
            message = f"{machines[twin]['host']} and {values['host']} both have dist.node_rank = {numbers[arrival]}"
            store.set("runner/refused", message)
    others = sorted(
        (arrival for arrival in machines if arrival not in numbers), key=lambda item: not machines[item]["serves"]
    )
    free = [number for number in range(count) if number not in numbers.values()]
    return numbers | dict(zip(others, free, strict=False))


def _stay_until_read(store: Store) -> None:
    """Wait until all machines have read the reason, since the store ends with the launcher that serves it."""
    store.add("runner/readers", 1)
    deadline = time.monotonic() + _TRY_SECONDS
    # At least two machines disagree, of which one may not be counted yet.
    while store.add("runner/readers", 0) < max(2, store.add("runner/machines", 0)) and time.monotonic() < deadline:
        time.sleep(_POLL_SECONDS)
