"""What a process asks of all processes between two steps, as one number of which the largest over all counts."""

from __future__ import annotations

from typing import NamedTuple

_NUM_SIGNALS = 128
# More than a run has.
_LAST_STEP = 2**40


class Request(NamedTuple):
    """Of several processes' requests the most urgent is heard: a bad loss, the earliest first; a signal; a save."""

    first_bad_step: int | None
    """The step, from 1, at which this process saw an infinite loss; None where all were finite."""
    signal_number: int
    """Of the signal that asked to stop; 0 for none."""
    saves: bool
    """Whether a checkpoint is due."""

    def to_number(self) -> int:
        """At least 0; more urgent requests give larger numbers."""
        urgency = 0 if self.first_bad_step is None else _LAST_STEP - self.first_bad_step
        return (urgency * _NUM_SIGNALS + self.signal_number) * 2 + self.saves

    @classmethod
    def from_number(cls, number: int) -> Request:
        """The request that gave this number."""
        rest, saves = divmod(number, 2)
        urgency, signal_number = divmod(rest, _NUM_SIGNALS)
        return cls(_LAST_STEP - urgency if urgency else None, signal_number, bool(saves))
