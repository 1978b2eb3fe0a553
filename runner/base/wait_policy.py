"""Computing beside other processes: how many threads, and whether they spin or sleep while they wait for each other.

OpenMP's threads spin for a while at the end of each parallel loop, which is fastest while they have the cores for
themselves. Beside other processes the spinning takes the time away from the thread that all wait for, and with as many
threads as cores one of them always waits for a core: a training collapses to a few per cent of its rate
(`benchmarks/busy_machine.py`).
"""

from __future__ import annotations

import os
import time
from pathlib import Path

VARIABLE = "OMP_WAIT_POLICY"
"""The environment variable of OpenMP 5.2, section 21.7, that says how threads wait."""
# With any of these the user, or who started this process, has chosen already.
_CHOSEN_BY = (VARIABLE, "GOMP_SPINCOUNT", "KMP_BLOCKTIME")
# Tens of microseconds, in place of milliseconds.
_BRIEFLY = {"GOMP_SPINCOUNT": "10000"}
_NUM_LOOKS = 15
_SECONDS_BETWEEN_LOOKS = 0.002
# A core in eight: less is the noise of any machine, and a large one is never still.
_BUSY_SHARE = 1 / 8


def choose_wait_policy() -> None:
    """Let this process's threads sleep while they wait, if others compute on this machine now.

    Must be called before torch is imported, which reads the variable then; processes that are started inherit it. It
    takes a thirtieth of a second. What the user has set stays, and so it does where Linux does not say what runs.
    """
    if any(name in os.environ for name in _CHOSEN_BY):
        return
    if _num_rivals() > 0:
        os.environ[VARIABLE] = "PASSIVE"


def brief_spinning() -> dict[str, str]:
    """Variables for a process that shares its cores with the one that gives it work: its threads spin for a moment.

    A thread that spins for longer keeps the core that the other process needs, and may be moved to that of the thread
    that it waits for: `serve` then answered one request in fifty in twice the usual time. GNU's OpenMP knows this
    variable (libgomp, "GOMP_SPINCOUNT"); others ignore it. Empty where the user has chosen.
    """
    return {} if any(name in os.environ for name in _CHOSEN_BY) else dict(_BRIEFLY)


def fair_share_of_cores(num_cores: int) -> int:
    """The cores that fall to this process if each thread that computes on the machine now has an equal share of them.

    With `num_cores` threads here and n elsewhere that is num_cores² / (num_cores + n), rounded down, at least 1; and
    `num_cores` where nobody else computes, the system does not say, or threads spin: nobody computed here when this
    process was started (:func:`choose_wait_policy`), so that whoever does now may be gone in a moment.
    It takes a thirtieth of a second.
    """
    if os.environ.get(VARIABLE, "").upper() != "PASSIVE":
        return num_cores
    return max(1, num_cores**2 // (num_cores + _num_rivals()))


def described() -> str | None:
    """How this process's threads wait, for the log; None where nothing is said and OpenMP spins for a while."""
    policy = os.environ.get(VARIABLE, "").upper()
    if policy == "PASSIVE":
        return f"sleep while they wait ({VARIABLE}=PASSIVE: yours, or chosen because other processes compute here)"
    return f"wait as {VARIABLE}={policy} says" if policy else None


def _num_rivals() -> int:
    """Threads of other processes that compute now; 0 where they are too few to matter, or nobody says."""
    num_others = num_computing_elsewhere() or 0
    return num_others if num_others >= max(1, _BUSY_SHARE * (os.cpu_count() or 1)) else 0


def num_computing_elsewhere() -> int | None:
    """Threads of other processes on this machine that compute or wait for a core; the median of 15 looks in 30 ms.

    None where the system is not Linux. In a container this is what the whole machine does.
    """
    looks = []
    for _ in range(_NUM_LOOKS):
        try:
            status = Path("/proc/stat").read_text(encoding="ascii")
        except OSError:
            return None
        number = next((line.split()[1] for line in status.splitlines() if line.startswith("procs_running ")), None)
        if number is None:
            return None
        looks.append(int(number) - 1)  # this process reads, so it runs
        time.sleep(_SECONDS_BETWEEN_LOOKS)
    return sorted(looks)[_NUM_LOOKS // 2]
