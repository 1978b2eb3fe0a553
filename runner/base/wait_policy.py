"""How the threads that compute on the CPU wait for each other: spinning, or asleep.

OpenMP's threads spin for a while at the end of each parallel loop, which is fastest while they have the cores for
themselves. Beside other processes the spinning takes the time away from the thread that all wait for, and a training
collapses to a few per cent of its rate (`benchmarks/busy_machine.py`).
"""

from __future__ import annotations

import os
import time
from pathlib import Path

VARIABLE = "OMP_WAIT_POLICY"
"""The environment variable of OpenMP 5.2, section 21.7, that says how threads wait."""
# With any of these the user, or who started this process, has chosen already.
_CHOSEN_BY = (VARIABLE, "GOMP_SPINCOUNT", "KMP_BLOCKTIME")
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
    num_others = num_computing_elsewhere()
    if num_others is None or num_others < max(1, _BUSY_SHARE * (os.cpu_count() or 1)):
        return
    os.environ[VARIABLE] = "PASSIVE"


def described() -> str | None:
    """How this process's threads wait, for the log; None where nothing is said and OpenMP spins for a while."""
    policy = os.environ.get(VARIABLE, "").upper()
    if policy == "PASSIVE":
        return f"sleep while they wait ({VARIABLE}=PASSIVE: yours, or chosen because other processes compute here)"
    return f"wait as {VARIABLE}={policy} says" if policy else None


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
