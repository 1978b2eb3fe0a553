"""The main memory that this process may use."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

_CONTROL_GROUPS = Path("/sys/fs/cgroup")


class _Bound(NamedTuple):
    """Memory of the machine, or the limit of a container or job, in bytes."""

    total: int
    available: int


def available_memory() -> int | None:
    """Free bytes of main memory, of the machine or of its container or job; None where unknown (macOS)."""
    return min((bound.available for bound in _bounds()), default=None)


def free_fraction_of_memory() -> float | None:
    """The free fraction of main memory, in [0, 1]: the smallest of machine, container and job; None where unknown."""
    return min((bound.available / bound.total for bound in _bounds() if bound.total), default=None)


def format_bytes(num_bytes: float) -> str:
    """In MiB or GiB."""
    return f"{num_bytes / 2**30:,.1f} GiB" if num_bytes >= 2**30 else f"{num_bytes / 2**20:,.0f} MiB"


def _bounds() -> list[_Bound]:
    bounds = []
    info = Path("/proc/meminfo")
    if info.is_file():
        fields = dict(line.split(":", 1) for line in info.read_text().splitlines())
        total, available = (int(fields[name].split()[0]) * 1024 for name in ("MemTotal", "MemAvailable"))
        bounds.append(_Bound(total, available))
    for folder in _own_control_groups():
        # Version 2, then version 1.
        for most, used, cached in (
            ("memory.max", "memory.current", ("inactive_file", "active_file")),
            ("memory.limit_in_bytes", "memory.usage_in_bytes", ("total_inactive_file", "total_active_file")),
        ):
            limit = _number_in(folder / most)
            if limit is not None:
                taken = (_number_in(folder / used) or 0) - _sum_of(folder / "memory.stat", cached)
                bounds.append(_Bound(limit, max(limit - max(taken, 0), 0)))
    return bounds


def _number_in(file: Path) -> int | None:
    """None where there is no such file, or no limit."""
    text = file.read_text().strip() if file.is_file() else ""
    return int(text) if text.isdecimal() else None


def _sum_of(file: Path, names: Sequence[str]) -> int:
    """Bytes of the page cache, which the system frees when needed; files in /dev/shm are not part of it."""
    rows = [line.split() for line in file.read_text().splitlines()] if file.is_file() else []
    return sum(int(value) for name, value in rows if name in names)


def _own_control_groups() -> list[Path]:
    """The nested control groups of this process, as Docker, SLURM and systemd create them."""
    own = Path("/proc/self/cgroup")
    folders = [_CONTROL_GROUPS, _CONTROL_GROUPS / "memory"]
    for line in own.read_text().splitlines() if own.is_file() else []:
        _, controllers, path = line.split(":", 2)
        root = _CONTROL_GROUPS / "memory" if controllers == "memory" else _CONTROL_GROUPS
        inner = root / path.strip("/")
        folders += [inner, *(parent for parent in inner.parents if parent.is_relative_to(root))]
    return folders
