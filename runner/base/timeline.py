"""Moments as a run's record holds them: none is before an earlier one, whatever is done to the machine's clock."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path

from runner.base.console import LOGGER

_TOLERATED = timedelta(seconds=1)  # records have whole seconds
# What lies outside was made up, and can't be counted on from.
_FIRST_YEAR, _LAST_YEAR = 1970, 9000


class Timeline:
    """Goes with the clock, but on by itself where the clock was set back: by the time that has really passed."""

    def __init__(self, earlier: Iterable[datetime] = ()) -> None:
        """Begin now.

        Args:
            earlier: moments that have passed already, with their time zone.
        """
        now = datetime.now(UTC)
        self._began = max([now, *earlier])
        self._began_at = time.monotonic()
        self._is_told = False
        self._tell_lag(self._began - now)

    def now(self) -> datetime:
        """This moment, in UTC."""
        now = datetime.now(UTC)
        reached = max(now, self._began + timedelta(seconds=time.monotonic() - self._began_at))
        self._tell_lag(reached - now)
        return reached

    def _tell_lag(self, lag: timedelta) -> None:
        if lag > _TOLERATED and not self._is_told:
            self._is_told = True
            LOGGER.warning(
                "the clock of this machine was set back: it is %s behind the times that run.json has, which go on from "
                "there by the seconds that pass",
                timedelta(seconds=round(lag.total_seconds())),
            )


def written(moment: datetime) -> str:
    """A moment as ISO 8601 with seconds."""
    return moment.isoformat(timespec="seconds")


def read_moment(text: object) -> datetime | None:
    """A moment that a record holds, in UTC; None where it holds no moment of our age."""
    try:
        moment = datetime.fromisoformat(text) if isinstance(text, str) else None
    except ValueError:
        return None
    if moment is None or not _FIRST_YEAR <= moment.year <= _LAST_YEAR:
        return None
    return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)


def new_name(now: datetime | None = None) -> Path:
    """A fresh `<date>/<time>-<short id>`; the id keeps apart what starts in the same second."""
    moment = now or datetime.now()
    return Path(f"{moment:%Y-%m-%d}") / f"{moment:%H-%M-%S}-{secrets.token_hex(3)}"
