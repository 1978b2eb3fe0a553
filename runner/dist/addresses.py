"""The addresses and network interfaces by which the machines of a run reach each other.

Stores and the sockets of gloo and NCCL have no authentication, so nothing listens at more addresses than the run needs.
Imports no torch.
"""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from runner.base.errors import LaunchError

ANY = ""
"""Listen at all addresses."""
_POLL_SECONDS = 0.2
_SIOCGIFADDR = 0x8915
_LOOPBACK_NAMES = ("localhost", "ip6-localhost", "localhost.localdomain")
_GLOBAL_SCOPE = "00"  # in /proc/net/if_inet6


@dataclass(frozen=True, kw_only=True)
class Endpoint:
    """A host and a port, and whether the host is this machine."""

    host: str
    port: int
    own: str | None
    """Where the host is this machine: the address to listen at, or ANY where several are possible; else None."""

    @property
    def target(self) -> str:
        """The address to connect to from this machine."""
        return self.own or self.host


def find_endpoint(host: str, port: int, seconds: float) -> Endpoint:
    """Find out whether a host is this machine, and at which of its addresses other machines connect to it.

    Debian and others resolve a machine's own host name to a loopback address, which other machines can't reach: then
    its only other address is taken.

    Args:
        host: name or address.
        port: of the endpoint.
        seconds: longest wait until the name resolves; DNS may know a new machine only some time after it has started.

    Raises:
        LaunchError: when the host does not resolve.
    """
    own = [address for address in _resolved(host, seconds) if _is_own(address)]
    # A listener at one address is not reached by the other; all machines have IPv4.
    own.sort(key=lambda address: (is_loopback(address), ":" in address))
    if not own:
        return Endpoint(host=host, port=port, own=None)
    if is_loopback(own[0]) and not _is_called_loopback(host):
        others = other_addresses()
        return Endpoint(host=host, port=port, own=own[0] if not others else others[0] if len(others) == 1 else ANY)
    return Endpoint(host=host, port=port, own=own[0])


def is_loopback(address: str) -> bool:
    """Whether only this machine reaches this address."""
    return address.startswith("127.") or address == "::1"


def _is_called_loopback(host: str) -> bool:
    return host.lower().rstrip(".") in _LOOPBACK_NAMES or is_loopback(host)


def _resolved(host: str, seconds: float) -> list[str]:
    deadline = time.monotonic() + seconds
    while True:
        try:
            found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
            return list(dict.fromkeys(str(info[4][0]) for info in found))
        except (socket.gaierror, UnicodeError) as error:
            if time.monotonic() > deadline:
                why = getattr(error, "strerror", None) or str(error)
                raise LaunchError(
                    f"the host {host!r} of the rendezvous (dist.rendezvous, else MASTER_ADDR) does not resolve on "
                    f"{socket.gethostname()} ({why}); give a name that all machines know, or an address"
                ) from error
            time.sleep(_POLL_SECONDS)


def _is_own(address: str) -> bool:
    """Whether an address is one of this machine's, which can be bound."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        try:
            probe.bind((address, 0))
        except OSError:
            return False
    return True


def address_towards(host: str, port: int = 9) -> str:
    """This machine's address on the route to another one; sends nothing."""
    family, kind, protocol, _, target = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind, protocol) as probe:
        probe.connect(target)
        return str(probe.getsockname()[0])


def other_addresses() -> list[str]:
    """The addresses by which other machines may reach this one: IPv4, or IPv6 where there is no IPv4."""
    found = [address for name, address in _interfaces() if not is_loopback(address) and not name.startswith("docker")]
    return [address for address in found if ":" not in address] or found


def interface_of(address: str) -> str | None:
    """The network interface with this address; None where the system does not say."""
    return next((name for name, known in _interfaces() if known == address), None)


def loopback_interface() -> str | None:
    """The loopback interface: lo on Linux, lo0 on macOS."""
    return next((name for _, name in socket.if_nameindex() if name in ("lo", "lo0")), None)


def _interfaces() -> Iterator[tuple[str, str]]:
    """Name and address of each interface; nothing on Windows, no IPv6 outside of Linux."""
    try:
        import fcntl  # noqa: PLC0415 - not on Windows
    except ImportError:
        return
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            with contextlib.suppress(OSError):  # an interface without an IPv4 address
                answer = fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, name.encode()[:15].ljust(256, b"\0"))
                yield name, socket.inet_ntoa(answer[20:24])
    table = Path("/proc/net/if_inet6")
    for line in table.read_text(encoding="ascii").splitlines() if table.is_file() else ():
        digits, _, _, scope, _, name = line.split()
        if scope == _GLOBAL_SCOPE or name == loopback_interface():
            yield name, socket.inet_ntop(socket.AF_INET6, bytes.fromhex(digits))


def use_interface(interface: str | None) -> None:
    """Make gloo and NCCL, in this process and its children, listen at one interface, unless the user has set another.

    By default gloo takes that of the host's own name, NCCL the first ones that are up.
    """
    if interface is not None:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", interface)
        os.environ.setdefault("NCCL_SOCKET_IFNAME", f"={interface}")  # without = it would be a prefix


def network_id() -> str:
    """Equal for exactly those processes that share a loopback interface; empty where the system does not say.

    Host names don't tell: machines may have equal names, and each container of a machine may have its own network.
    """
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot}/{Path('/proc/self/ns/net').stat().st_ino}"
    except OSError:
        return ""
