"""A process of an adopted group that is refused takes the others along. Imports no torch where there is no group."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Event

from runner.base.errors import RunnerError
from runner.launch.environment import Place


@contextmanager
def refusals_told(place: Place | None) -> Iterator[Event]:
    """Let the other processes of an adopted group end as well when this one is refused before it has met them.

    Yields:
        To be set once this process is past all refusals.
    """
    passed = Event()
    try:
        yield passed
    except RunnerError as error:
        if place is not None and not passed.is_set():
            from runner.launch.ranks.adopted import tell_refusal  # noqa: PLC0415 - torch, for those who have company

            tell_refusal(place, error)
        raise
