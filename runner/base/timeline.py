"""Timestamps of run.json that never go backwards, and the names of run folders, which begin with the time."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path

from runner.base.console import LOGGER

_TOLERATED = timedelta(seconds=1)  # timestamps in files have whole seconds
# Timestamps outside of these are invalid.
_FIRST_YEAR, _LAST_YEAR = 1970, 9000


class Timeline:
    """The machine's clock; where that was set back, the last known time plus the seconds since (monotonic)."""

    def __init__(self, earlier: Iterable[datetime] = ()) -> None:
        """Begin at the latest of now and the earlier timestamps.

        Args:
            earlier: timestamps of the past, with time zone.
        """
        now = datetime.now(UTC)
        self._began = max([now, *earlier])
        self._began_at = time.monotonic()
        self._has_warned = False
        self._warn_of_lag(self._began - now)

    def now(self) -> datetime:
        """The current time in UTC."""
        now = datetime.now(UTC)
        reached = max(now, self._began + timedelta(seconds=time.monotonic() - self._began_at))
        self._warn_of_lag(reached - now)
        return reached

    def _warn_of_lag(self, lag: timedelta) -> None:
        if lag > _TOLERATED and not self._has_warned:
            self._has_warned = True
            LOGGER.warning(
                "the clock of this machine was set back: it is %s behind the times in run.json; new times there are "
                "the last one plus the seconds since",
                timedelta(seconds=round(lag.total_seconds())),
            )


def to_iso(moment: datetime) -> str:
    """ISO 8601 with whole seconds."""
    return moment.isoformat(timespec="seconds")


def parse_moment(text: object) -> datetime | None:
    """An ISO 8601 text in UTC; None where it is none, or outside of the years 1970 to 9000."""
    try:
        moment = datetime.fromisoformat(text) if isinstance(text, str) else None
    except ValueError:
        return None
    if moment is None or not _FIRST_YEAR <= moment.year <= _LAST_YEAR:
        return None
    return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)


def new_run_name(now: datetime | None = None) -> Path:
    """A new `<date>/<time>-<short id>`; the random id distinguishes runs that start in the same second."""
    moment = now or datetime.now()
    return Path(f"{moment:%Y-%m-%d}") / f"{moment:%H-%M-%S}-{secrets.token_hex(3)}"
