"""How machines on which the same command was typed find each other before any process is started.

The store that they share is the one that PyTorch's c10d rendezvous will use as well; over it they compare what they
were asked for, so that a disagreement is said in words instead of ending in a timeout.
"""

from __future__ import annotations

import contextlib
import errno
import json
import secrets
import socket
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from types import TracebackType
from typing import Any

from torch.distributed import DistError, TCPStore  # type: ignore[attr-defined]
from torch.distributed.distributed_c10d import Store

from runner.errors import LaunchError
from runner.plan.mode import LaunchPlan
from runner.schema import Config
from runner.within import within

_TRY_SECONDS = 2.0
_POLL_SECONDS = 0.2
_READ_SECONDS = 30  # longest answer of the store, beyond which a machine takes the others for lost
_SIOCGIFADDR = 0x8915


@dataclass(frozen=True, kw_only=True)
class Machines(contextlib.AbstractContextManager["Machines"]):
    """Where the elastic agents of all machines meet, and how this one can be reached."""

    run_id: str
    backend: str
    """PyTorch's rendezvous: c10d, or static where machines are numbered by hand."""
    endpoint: str
    options: Mapping[str, Any]
    """Further options of that rendezvous."""
    address: str
    """Address of this machine as the others know it."""
    interface: str | None
    """Network interface that has this address; gloo would look up the host's own name, which may be a loopback one."""
    store: Store | None = field(default=None, repr=False)
    """Kept open: as long as it is, the agent's own store is the same one."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Nothing to end: the store closes with the last reference to it."""


def one_machine() -> Machines:
    """A rendezvous of one: on this machine's loopback interface, at a port that is free."""
    loopback = next((name for _, name in socket.if_nameindex() if name.startswith("lo")), None)
    return Machines(
        run_id=secrets.token_hex(8),
        backend="c10d",
        endpoint="localhost:0",
        options={"is_host": True},
        address="localhost",
        interface=loopback,
    )


def meet_machines(config: Config, plan: LaunchPlan) -> Machines:
    """Wait for the other machines and compare what each was asked for.

    Raises:
        LaunchError: the host does not resolve or does not answer in time, the port is in use, machines are missing, or
            they were asked for different things.
    """
    dist = config.dist
    assert dist.endpoint is not None, "the plan has seen to it"
    host, port = dist.endpoint
    addresses = _resolved(host, dist.rendezvous_timeout_seconds)
    is_named = any(_is_own(address) for address in addresses)
    is_host = is_named and dist.node_rank in (None, 0)  # two numbers may be given to launchers on one machine
    if dist.node_rank == 0 and not is_named:
        raise LaunchError(
            f"dist.node_rank = 0 is the machine that dist.rendezvous = {dist.rendezvous!r} names, but {host} is "
            f"{addresses[0]}, which is not {socket.gethostname()}; give this machine another number, or name it there"
        )
    deadline = time.monotonic() + dist.rendezvous_timeout_seconds
    store, is_server = _open_store(host, port, is_host=is_host, deadline=deadline, config=config)
    try:
        own = _own_address(host, port, is_host=is_host)
        seconds = max(0, deadline - time.monotonic()) + _READ_SECONDS
        address = within(seconds, lambda: _compare(store, config, plan, own=own, deadline=deadline))
    except TimeoutError as error:
        raise LaunchError(
            f"{host}:{port} does not answer any more ({error}): is that machine frozen, or the run stopped there?"
        ) from error
    except DistError as error:
        raise LaunchError(f"lost contact with {host}:{port}: the run has ended there, whose output says why") from error
    options: dict[str, Any] = {"is_host": is_server, "read_timeout": _READ_SECONDS}
    if dist.node_rank is not None:
        options = {"rank": dist.node_rank}
    return Machines(
        run_id=f"runner-{store.get('runner/run').decode()}",
        backend="c10d" if dist.node_rank is None else "static",
        endpoint=f"{host}:{port}",
        options=options,
        address=address,
        interface=_interface_of(address),
        store=store,
    )


def _resolved(host: str, seconds: float) -> list[str]:
    """The addresses of a host; names may come up later than machines do, but not much."""
    deadline = time.monotonic() + min(seconds, 10)
    while True:
        try:
            return [str(info[4][0]) for info in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)]
        except socket.gaierror as error:
            if time.monotonic() > deadline:
                raise LaunchError(
                    f"dist.rendezvous: the host {host!r} does not resolve on {socket.gethostname()} "
                    f"({error.strerror}); give a name that all machines know, or an address"
                ) from error
            time.sleep(_POLL_SECONDS)


def _is_own(address: str) -> bool:
    """Whether an address is one of this machine's: only those can be bound."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        try:
            probe.bind((address, 0))
        except OSError:
            return False
    return True


def _open_store(host: str, port: int, *, is_host: bool, deadline: float, config: Config) -> tuple[Store, bool]:
    """The store where the machines meet, and whether this process serves it."""
    shown, seconds = f"{host}:{port}", config.dist.rendezvous_timeout_seconds
    if is_host and not _is_in_use(port):
        return TCPStore(host, port, is_master=True, multi_tenant=True, wait_for_workers=False), True
    while True:
        try:
            # On the host too: several launchers of one run may share it, as on a workstation that plays a cluster.
            seconds_left = max(_POLL_SECONDS, deadline - time.monotonic())
            return _connected(host, port, min(seconds_left, 2 * _TRY_SECONDS)), False
        except (DistError, RuntimeError, TimeoutError) as error:
            if is_host:
                raise LaunchError(
                    f"dist.rendezvous: port {port} of {socket.gethostname()} is in use by another program; end it, or "
                    "choose another port, on all machines"
                ) from error
            if time.monotonic() > deadline:
                raise LaunchError(
                    f"dist.rendezvous = {shown} did not answer within {seconds:g} seconds "
                    "(dist.rendezvous_timeout_seconds); is the run started on that machine too, and is the port open?"
                ) from error
            time.sleep(_POLL_SECONDS)


def _connected(host: str, port: int, seconds: float) -> Store:
    """A client of the store.

    Raises:
        DistError, RuntimeError, TimeoutError: when nothing, or something else, answers there.
    """
    timeout = timedelta(seconds=_TRY_SECONDS)
    store = within(
        seconds,
        lambda: TCPStore(host, port, is_master=False, timeout=timeout, wait_for_workers=False),
    )
    store.set_timeout(timedelta(seconds=_READ_SECONDS))
    return store


def _is_in_use(port: int) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", port))
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                return True
            raise LaunchError(f"dist.rendezvous: port {port} can't be opened here: {error.strerror}") from error
    return False


def _compare(store: Store, config: Config, plan: LaunchPlan, *, own: str | None, deadline: float) -> str:
    """Wait until all machines are there and agree on their number; returns this machine's address."""
    seconds = config.dist.rendezvous_timeout_seconds
    store.compare_set("runner/run", "", secrets.token_hex(8))
    wanted = {"nodes": plan.num_nodes, "host": socket.gethostname()}
    first = json.loads(store.compare_set("runner/first", "", json.dumps(wanted)))
    if first["nodes"] != plan.num_nodes:
        message = f"{first['host']} has dist.nodes = {first['nodes']}, but {wanted['host']} has {plan.num_nodes}"
        store.set("runner/refused", message)
    # Only now: whoever sees that all are there also sees what they said.
    number = store.add("runner/number", 1)
    store.set(f"runner/machine/{number}", own or "")
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
    if store.check(["runner/refused"]):
        reason = store.get("runner/refused").decode()
        with contextlib.suppress(DistError):  # The machine that serves the store has seen that all have read, and left.
            _stay_until_read(store)
        raise LaunchError(f"the machines disagree: {reason}; start all with the same command")
    return own or _address_towards(_any_other_address(store, plan.num_nodes, number))


def _stay_until_read(store: Store) -> None:
    """The store lives in one of the launchers, which must not leave before the others have read why."""
    store.add("runner/readers", 1)
    deadline = time.monotonic() + _TRY_SECONDS
    # A disagreement has two sides, of which one may not be counted yet.
    while store.add("runner/readers", 0) < max(2, store.add("runner/machines", 0)) and time.monotonic() < deadline:
        time.sleep(_POLL_SECONDS)


def _any_other_address(store: Store, num_nodes: int, number: int) -> str:
    others = (n for n in range(1, num_nodes + 1) if n != number)
    addresses = [store.get(f"runner/machine/{other}").decode() for other in others]
    return next((address for address in addresses if address), "127.0.0.1")


def _own_address(host: str, port: int, *, is_host: bool) -> str | None:
    """The address by which others reach this machine; None where only another machine's address can tell."""
    address = _address_towards(host, port)
    is_loopback = address.startswith("127.") or address == "::1"
    return None if is_host and is_loopback else address


def _address_towards(host: str, port: int = 9) -> str:
    """This machine's address on the way to another one; sends nothing."""
    family, kind, protocol, _, target = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind, protocol) as probe:
        probe.connect(target)
        return str(probe.getsockname()[0])


def _interface_of(address: str) -> str | None:
    """The network interface with this IPv4 address; None where that can't be asked."""
    for name, known in _interfaces():
        if known == address:
            return name
    return None


def _interfaces() -> Iterator[tuple[str, str]]:
    try:
        import fcntl  # noqa: PLC0415 - not on Windows
    except ImportError:
        return
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            with contextlib.suppress(OSError):  # an interface without an IPv4 address
                answer = fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, name.encode()[:15].ljust(256, b"\0"))
                yield name, socket.inet_ntoa(answer[20:24])
