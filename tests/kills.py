"""Work that is killed as it touches the disk, at each touch in turn."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable

_TOUCHES_DISK = ("open", "os.rename", "os.remove", "os.rmdir", "os.mkdir", "shutil.rmtree", "shutil.copyfile")


def killed_at(event_number: int, work: Callable[[], object]) -> bool:
    """Do the work in a fork that is killed as it touches the disk for so many times; False once it ends."""
    pid = os.fork()
    if pid == 0:
        code, num_events = 1, 0

        def kill(event: str, _: object) -> None:
            nonlocal num_events
            num_events += event in _TOUCHES_DISK
            if num_events == event_number and event in _TOUCHES_DISK:
                os.kill(os.getpid(), signal.SIGKILL)

        try:
            sys.addaudithook(kill)
            work()
            code = 0
        finally:
            os._exit(code)
    _, status = os.waitpid(pid, 0)
    assert status in (0, signal.SIGKILL), "it ends well, or is killed"
    return os.WIFSIGNALED(status)
