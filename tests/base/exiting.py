"""What a started process of a test does; in a module of its own, since the process imports all of it."""

from __future__ import annotations

import atexit
import os

from runner.base.process import exit_without_cleanup_after_success


class _Freed:
    def __init__(self) -> None:
        self.itself = self

    def __del__(self) -> None:
        os.write(1, b"freed\n")


def leave_an_object(fails: bool) -> None:
    """Leave an object that only Python's own exit frees, and return or raise."""
    exit_without_cleanup_after_success()
    globals()["kept"] = _Freed()
    atexit.register(os.write, 1, b"exit function\n")
    if fails:
        raise ValueError("bad")
