"""Which address of this machine serves the others, and which of its network interfaces they reach it by.

Whoever reaches a store, or a socket of gloo or NCCL, is inside of the run; so nothing listens at more addresses than
the run needs. Imports no torch.
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
"""As an address to listen at: all of them."""
_POLL_SECONDS = 0.2
_SIOCGIFADDR = 0x8915
_LOOPBACK_NAMES = ("localhost", "ip6-localhost", "localhost.localdomain")
_SCOPE_OF_ALL = "00"  # in Linux' table of IPv6 addresses: neither of a host nor of a link


@dataclass(frozen=True, kw_only=True)
class Endpoint:
    """A host and a port as this machine sees them."""

    host: str
    port: int
    own: str | None
    """Where the host is this machine: the address to serve at, or ANY where it can't be told which of several is meant;
    else None."""

    @property
    def target(self) -> str:
        """What to connect to from here."""
        return self.own or self.host


def find_endpoint(host: str, port: int, seconds: float) -> Endpoint:
    """Find out whether a host is this machine, and at which of its addresses the others expect it.

    Debian and others write the own name of a machine down as a loopback address, under which nobody else finds it: then
    its only other address is meant.

    Args:
        host: name or address.
        port: plain number.
        seconds: longest wait for a name that is not known yet: names may come up later than machines do.

    Raises:
        LaunchError: when the host does not resolve.
    """
    own = [address for address in _resolved(host, seconds) if _is_own(address)]
    # What listens at one address is not found at the other; all know IPv4.
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
                    f"the host {host!r} does not resolve on {socket.gethostname()} ({why}), and there the run is to "
                    "meet (dist.rendezvous, else MASTER_ADDR); give a name that all machines know, or an address"
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


def address_towards(host: str, port: int = 9) -> str:
    """This machine's address on the way to another one; sends nothing."""
    family, kind, protocol, _, target = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind, protocol) as probe:
        probe.connect(target)
        return str(probe.getsockname()[0])


def other_addresses() -> list[str]:
    """The addresses by which other machines may reach this one: of IPv4, without IPv4 those of IPv6."""
    found = [address for name, address in _interfaces() if not is_loopback(address) and not name.startswith("docker")]
    return [address for address in found if ":" not in address] or found


def interface_of(address: str) -> str | None:
    """The network interface with this address; None where that can't be asked."""
    return next((name for name, known in _interfaces() if known == address), None)


def loopback_interface() -> str | None:
    """The network interface that leaves this machine for nowhere: lo on Linux, lo0 on macOS."""
    return next((name for _, name in socket.if_nameindex() if name in ("lo", "lo0")), None)


def _interfaces() -> Iterator[tuple[str, str]]:
    """Name and address of each interface, as far as Linux tells."""
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
        if scope == _SCOPE_OF_ALL or name == loopback_interface():
            yield name, socket.inet_ntop(socket.AF_INET6, bytes.fromhex(digits))


def keep_to(interface: str | None) -> None:
    """Let gloo and NCCL, in this process and those it starts, listen at one interface, unless the user names another.

    Gloo would take that of the host's own name, NCCL the first ones that are up.
    """
    if interface is not None:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", interface)
        os.environ.setdefault("NCCL_SOCKET_IFNAME", f"={interface}")  # = is for this very name, without it for a prefix


def network_id() -> str:
    """The same for all processes that share a loopback interface, and for no others; empty where it can't be told.

    Hosts may have equal names, and containers of one machine each a network of their own.
    """
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot}/{Path('/proc/self/ns/net').stat().st_ino}"
    except OSError:
        return ""
