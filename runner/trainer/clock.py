"""Where the time of the epoch in progress goes."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal

# Waiting for data is a part of training; nothing else overlaps.
Part = Literal["train", "data_wait", "evaluation", "checkpoint"]
_PARTS: tuple[Part, ...] = ("train", "data_wait", "evaluation", "checkpoint")


class Clock:
    """Wall clock of one epoch, as this process sees it; what an attempt before had measured of it counts as well."""

    def __init__(self) -> None:
        self._seconds: dict[Part, float] = dict.fromkeys(_PARTS, 0.0)
        self._earlier_seconds = 0.0
        self._began_at = time.perf_counter()

    def start(self) -> None:
        """Count from now on."""
        self._began_at = time.perf_counter()

    @contextmanager
    def runs_for(self, part: Part) -> Iterator[None]:
        """Count the time of a block. What is queued on a device counts where it is waited for."""
        started = time.perf_counter()
        try:
            yield
        finally:
            self._seconds[part] += time.perf_counter() - started

    def to_json(self) -> dict[str, float]:
        """Seconds of each part, and of the whole epoch so far: what the parts leave of it is bookkeeping."""
        parts = {f"{part}_seconds": seconds for part, seconds in self._seconds.items()}
        return {**parts, "epoch_seconds": self._earlier_seconds + time.perf_counter() - self._began_at}

    def restore(self, values: dict[str, Any]) -> None:
        """Let what :meth:`to_json` gave count as well."""
        # Older checkpoints know of fewer parts.
        self._seconds = {part: values.get(f"{part}_seconds", 0.0) for part in _PARTS}
        self._earlier_seconds = values.get("epoch_seconds", self._seconds["train"])
