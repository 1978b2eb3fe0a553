"""Which TCP ports processes listen at, as Linux tells."""

from __future__ import annotations

import ipaddress
import struct
from collections.abc import Iterable
from pathlib import Path

_LISTENS = "0A"


def descendants(pid: int) -> set[int]:
    """A process and all that it has started."""
    found, left = set(), [pid]
    while left:
        one = left.pop()
        found.add(one)
        for file in Path(f"/proc/{one}/task").glob("*/children"):
            try:
                left += map(int, file.read_text().split())
            except (FileNotFoundError, ProcessLookupError):
                continue  # It has ended.
    return found


def listening(pids: Iterable[int]) -> set[tuple[str, int]]:
    """Address and port of each TCP socket at which one of these processes listens."""
    found = set()
    for pid in pids:
        sockets = _sockets_of(pid)
        for table in ("tcp", "tcp6"):
            file = Path(f"/proc/{pid}/net/{table}")
            for line in file.read_text().splitlines()[1:] if file.is_file() else ():
                _, local, _, state, *_, inode = line.split()[:10]
                if state == _LISTENS and inode in sockets:
                    address, port = local.split(":")
                    found.add((_address(address), int(port, 16)))
    return found


def is_loopback(address: str) -> bool:
    parsed = ipaddress.ip_address(address)
    return (getattr(parsed, "ipv4_mapped", None) or parsed).is_loopback


def _sockets_of(pid: int) -> set[str]:
    links = set()
    for file in Path(f"/proc/{pid}/fd").glob("*"):
        try:
            links.add(str(file.readlink()))
        except (FileNotFoundError, ProcessLookupError):
            continue  # It has closed the file, or ended.
    return {link.removeprefix("socket:[").rstrip("]") for link in links if link.startswith("socket:[")}


def _address(digits: str) -> str:
    # Words of 32 bits, each in this machine's order.
    words = [struct.pack("=I", int(digits[start : start + 8], 16)) for start in range(0, len(digits), 8)]
    return str(ipaddress.ip_address(b"".join(words)))
