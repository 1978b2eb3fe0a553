"""The stores (TCPStore, FileStore) of the rendezvous. A TCPStore of PyTorch's own listens at all addresses."""

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


def serve_store(address: str, port: int, *, seconds: float, world_size: int | None = None) -> Store:
    """Serve a TCPStore in this process until the object is deleted.

    Args:
        address: to listen at; ANY for all of this machine's.
        port: to listen at.
        seconds: longest wait for an answer and, with a world size, for the other processes.
        world_size: number of processes to wait for; None for no wait.

    Raises:
        OSError: the port is in use, or can't be opened.
        DistError: the other processes did not connect in time.
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


def connect_store(host: str, port: int, *, seconds: float, world_size: int | None = None) -> Store:
    """A client of a store; arguments as of :func:`serve_store`.

    Raises:
        DistError, RuntimeError: no TCPStore answers there.
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
    """The store of processes that torchrun, srun or mpirun has started; rank 0 serves it unless an elastic agent does.

    Args:
        url: env://, tcp://host:port or file:///path.
        rank: of this process.
        world_size: number of processes.
        seconds: longest wait for the other processes.

    Raises:
        ValueError: the URL is invalid, or MASTER_ADDR or MASTER_PORT is not set.
        LaunchError: the host does not resolve.
        DistError, RuntimeError, OSError: no store answers, or the port can't be opened.
    """
    if url.startswith("file://"):
        return FileStore(url.removeprefix("file://"), world_size)
    host, port = _host_and_port(url)
    if _is_served_by_agent(host, port):
        return connect_store(host, port, seconds=seconds, world_size=world_size)
    endpoint = find_endpoint(host, port, seconds)
    if rank != 0:
        return connect_store(endpoint.target, port, seconds=seconds, world_size=world_size)
    if endpoint.own is None or endpoint.own == ANY:
        LOGGER.warning(
            "%s does not say which interface of this machine the other processes use, so the store listens at port %d "
            "of all interfaces; with the address of rank 0 instead of a name it would listen at that one only",
            host,
            port,
        )
    return serve_store(endpoint.own or ANY, port, seconds=seconds, world_size=world_size)


def _host_and_port(url: str) -> tuple[str, int]:
    if url == "env://":
        missing = [name for name in ("MASTER_ADDR", "MASTER_PORT") if not os.environ.get(name)]
        if missing:
            raise ValueError(f"the environment variable {missing[0]} is not set")
        port = os.environ["MASTER_PORT"].strip()
        if not (port.isascii() and port.isdecimal() and 0 < int(port[:9]) < 2**16):
            raise ValueError("the environment variable MASTER_PORT must be a port from 1 to 65535")
        return os.environ["MASTER_ADDR"], int(port)
    parts = urlsplit(url)
    if parts.scheme != "tcp" or parts.hostname is None or parts.port is None:
        raise ValueError("it is no tcp://host:port")
    return parts.hostname, parts.port


def _is_served_by_agent(host: str, port: int) -> bool:
    """Whether torchrun, or our launcher, has set that its agent serves this store."""
    names = ("TORCHELASTIC_USE_AGENT_STORE", "MASTER_ADDR", "MASTER_PORT")
    return [os.environ.get(name) for name in names] == ["True", host, str(port)]
