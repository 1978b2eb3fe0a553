"""Waits that end. Torch's store heeds its own timeout only where the other side is gone: of a program that accepts
connections and says nothing, or a machine that is frozen, it waits for the answer forever."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TypeVar

Value = TypeVar("Value")
_TICK_SECONDS = 0.1


def within(seconds: float, work: Callable[[], Value]) -> Value:
    """Do what may never return, on a thread of its own, which is left behind then.

    Args:
        seconds: longest wait.
        work: is to end by itself where it can.

    Raises:
        TimeoutError: when it has not ended.
        Exception: whatever the work raises.
    """
    values: list[Value] = []
    errors: list[BaseException] = []

    def do() -> None:
        try:
            values.append(work())
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=do, name="within", daemon=True)
    thread.start()
    deadline = time.monotonic() + seconds
    while thread.is_alive() and time.monotonic() < deadline:
        # In short waits: a request to stop that another thread hands to this one is heard between them.
        thread.join(_TICK_SECONDS)
    if errors:
        raise errors[0]
    if not values:
        raise TimeoutError(f"no answer within {seconds:g} seconds")
    return values[0]
