"""Opens the stores over which processes and machines meet, each at one address.

PyTorch's own way of serving one listens at all addresses of the machine.
"""

from __future__ import annotations

import os
import socket
from datetime import timedelta
from urllib.parse import urlsplit

from torch.distributed import FileStore, TCPStore  # type: ignore[attr-defined]
from torch.distributed.distributed_c10d import Store

from runner.base.console import LOGGER
from runner.dist.addresses import ANY, find_endpoint

_BACKLOG = 2048


def serve(address: str, port: int, *, seconds: float, world_size: int | None = None) -> Store:
    """Serve a store in this process, for as long as anybody holds it.

    Args:
        address: to listen at; ANY for all of this machine's.
        port: plain number.
        seconds: longest wait for an answer and, with a world size, for the others.
        world_size: number of processes to wait for; None for no wait.

    Raises:
        OSError: the port is in use, or can't be opened.
        DistError: the others did not come.
    """
    is_dual = address == ANY and socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if is_dual or ":" in address else socket.AF_INET
    listener = socket.create_server((address, port), family=family, backlog=_BACKLOG, dualstack_ipv6=is_dual)
    return TCPStore(
        address or "127.0.0.1",  # this process is a client of its own store too
        port,
        world_size,
        is_master=True,
        timeout=timedelta(seconds=seconds),
        wait_for_workers=world_size is not None,
        master_listen_fd=listener.detach(),
    )


def connect(host: str, port: int, *, seconds: float, world_size: int | None = None) -> Store:
    """A client of a store; see :func:`serve`.

    Raises:
        DistError, RuntimeError: when nothing, or something else, answers there.
    """
    return TCPStore(
        host,
        port,
        world_size,
        is_master=False,
        timeout=timedelta(seconds=seconds),
        wait_for_workers=world_size is not None,
    )


def open_store(url: str, rank: int, world_size: int, seconds: float) -> Store:
    """The store of processes that others have started, which rank 0 serves unless an elastic agent does.

    Args:
        url: env://, tcp://host:port or file:///path.
        rank: of this process.
        world_size: number of processes.
        seconds: longest wait for the others.

    Raises:
        ValueError: the URL, or the environment, names no place.
        LaunchError: the host does not resolve.
        DistError, RuntimeError, OSError: nobody answers, or the port can't be opened.
    """
    if url.startswith("file://"):
        return FileStore(url.removeprefix("file://"), world_size)
    host, port = _host_and_port(url)
    if _is_served_by_agent(host, port):
        return connect(host, port, seconds=seconds, world_size=world_size)
    endpoint = find_endpoint(host, port, seconds)
    if rank != 0:
        return connect(endpoint.target, port, seconds=seconds, world_size=world_size)
    if endpoint.own is None or endpoint.own == ANY:
        LOGGER.warning(
            "%s is no address of this machine that others could be told to use, so the processes meet at port %d of "
            "all its interfaces; the address of rank 0's network instead of a name would open that one only",
            host,
            port,
        )
    return serve(endpoint.own or ANY, port, seconds=seconds, world_size=world_size)


def _host_and_port(url: str) -> tuple[str, int]:
    if url == "env://":
        missing = [name for name in ("MASTER_ADDR", "MASTER_PORT") if not os.environ.get(name)]
        if missing:
            raise ValueError(f"the environment variable {missing[0]} is not set")
        return os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    parts = urlsplit(url)
    if parts.scheme != "tcp" or parts.hostname is None or parts.port is None:
        raise ValueError("it is no tcp://host:port")
    return parts.hostname, parts.port


def _is_served_by_agent(host: str, port: int) -> bool:
    """Whether torchrun, or our launcher, has said that it serves the store where its processes meet."""
    said = os.environ.get("TORCHELASTIC_USE_AGENT_STORE"), os.environ.get("MASTER_ADDR"), os.environ.get("MASTER_PORT")
    return said == ("True", host, str(port))
