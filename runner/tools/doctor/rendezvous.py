"""Whether machines can meet at dist.rendezvous, as seen from this one, before anything is started."""

from __future__ import annotations

import errno
import socket
from datetime import timedelta

from torch.distributed import DistError, TCPStore  # type: ignore[attr-defined]

from runner.base.errors import LaunchError
from runner.base.time_limit import within
from runner.config.schema.dist import DistConfig
from runner.tools.doctor.findings import Finding

_SECONDS_TO_ANSWER = 3.0


def check_rendezvous(dist: DistConfig) -> Finding:
    """Whether the host resolves, and its port is free there or answers.

    That nobody answers at another machine is no error: it may only not have begun.
    """
    if dist.endpoint is None:
        return Finding(topic="rendezvous", found="not needed: the machines, if many, are told by who starts them")
    host, port = dist.endpoint
    try:
        addresses = sorted({str(info[4][0]) for info in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)})
    except socket.gaierror as error:
        refusal = LaunchError(
            f"dist.rendezvous: the host {host!r} does not resolve on {socket.gethostname()} ({error.strerror}); give a "
            "name that all machines know, or an address"
        )
        return Finding(topic="rendezvous", found=str(refusal), error=refusal)
    values = {"host": host, "port": port, "addresses": addresses}
    own = next((address for address in addresses if _failure_to_bind(address, 0) is None), None)
    finding = _elsewhere(host, port, addresses[0]) if own is None else _here(host, port, own)
    return Finding(topic=finding.topic, found=finding.found, error=finding.error, advice=finding.advice, values=values)


def _here(host: str, port: int, address: str) -> Finding:
    code = _failure_to_bind(address, port)
    if code is None:
        return Finding(topic="rendezvous", found=f"{host} is this machine, and port {port} is free")
    if code == errno.EADDRINUSE and _is_store(host, port):
        return Finding(topic="rendezvous", found=f"{host} is this machine, and a run waits at port {port} already")
    why = "is in use by something else" if code == errno.EADDRINUSE else f"can't be opened ({_words(code)})"
    error = LaunchError(f"dist.rendezvous: port {port} of {host}, which is this machine, {why}; choose another port")
    return Finding(topic="rendezvous", found=str(error), error=error)


def _elsewhere(host: str, port: int, address: str) -> Finding:
    try:
        socket.create_connection((address, port), timeout=_SECONDS_TO_ANSWER).close()
    except ConnectionRefusedError:
        found = f"{host} ({address}) can be reached; nobody waits at port {port} yet"
        return Finding(topic="rendezvous", found=found, advice=(f"start the same command on {host} too",))
    except OSError as failure:
        found = f"{host} ({address}) does not answer at port {port}: {failure.strerror or failure}"
        advice = f"is {host} up, and do firewalls between the machines leave port {port} and those above 32768 open?"
        return Finding(topic="rendezvous", found=found, advice=(advice,))
    if _is_store(host, port):
        return Finding(topic="rendezvous", found=f"a run waits at {host}:{port}")
    error = LaunchError(
        f"dist.rendezvous: {host}:{port} answers, but it is no run that waits there; choose a port that is "
        f"free on {host}"
    )
    return Finding(topic="rendezvous", found=str(error), error=error)


def _failure_to_bind(address: str, port: int) -> int | None:
    """None where this address and port can be served by this machine, else the number of the system's error."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((address, port))
        except OSError as error:
            return error.errno
    return None


def _is_store(host: str, port: int) -> bool:
    """Whether what answers is the store of a run: another program does not know its greeting."""
    timeout = timedelta(seconds=_SECONDS_TO_ANSWER)
    try:
        within(
            _SECONDS_TO_ANSWER,
            lambda: TCPStore(host, port, is_master=False, wait_for_workers=False, timeout=timeout),
        )
    except (DistError, RuntimeError, ValueError, TimeoutError):
        return False
    return True


def _words(code: int) -> str:
    return errno.errorcode.get(code, str(code))
