"""How much main memory this process may use."""

from __future__ import annotations

from pathlib import Path

_CONTROL_GROUPS = Path("/sys/fs/cgroup")


def available_memory() -> int | None:
    """Bytes of main memory that this process and its like may use: the machine's, or less in a container or a job.

    None where the system does not say (macOS).
    """
    limits = []
    info = Path("/proc/meminfo")
    if info.is_file():
        fields = dict(line.split(":", 1) for line in info.read_text().splitlines())
        limits.append(int(fields["MemAvailable"].split()[0]) * 1024)
    for folder in _own_control_groups():
        for name in ("memory.max", "memory.limit_in_bytes"):
            file = folder / name
            if file.is_file() and (text := file.read_text().strip()).isdecimal():
                limits.append(int(text))
    return min(limits, default=None)


def _own_control_groups() -> list[Path]:
    """The control groups that this process is in, each inside the next: Docker's, SLURM's, systemd's."""
    own = Path("/proc/self/cgroup")
    folders = [_CONTROL_GROUPS, _CONTROL_GROUPS / "memory"]
    for line in own.read_text().splitlines() if own.is_file() else []:
        _, controllers, path = line.split(":", 2)
        root = _CONTROL_GROUPS / "memory" if controllers == "memory" else _CONTROL_GROUPS
        inner = root / path.strip("/")
        folders += [inner, *(parent for parent in inner.parents if parent.is_relative_to(root))]
    return folders
