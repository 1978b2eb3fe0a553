"""What people see of a sweep while it runs: a live table on a terminal, elsewhere a line per start and end."""

from __future__ import annotations

from rich.table import Table

from runner.base.console import LOGGER, LiveView
from runner.base.untrusted import printable
from runner.tools.sweep.leaderboard import Leaderboard, Place
from runner.tools.sweep.outcome import Outcome

_STYLES = {"running": "cyan", "completed": "green", "failed": "red", "pruned": "yellow"}
_MAX_ERROR = 100
_MAX_DIGITS = 8


class SweepTable:
    """Shows a leaderboard as it changes."""

    def __init__(self, view: LiveView, num_rows: int) -> None:
        """Plain values.

        Args:
            view: where to show it.
            num_rows: most rows of the live table; the best and the running ones come first.
        """
        self._view = view
        self._num_rows = num_rows

    @property
    def is_live(self) -> bool:
        """Whether there is a terminal to show it on."""
        return self._view.is_live

    def show(self, board: Leaderboard) -> None:
        """Show how far all trials are."""
        self._view.show(as_table(board, self._num_rows))

    def started(self, number: int, values: dict[str, str], *, is_resumed: bool) -> None:
        """Say that a trial starts."""
        if not self._view.is_live:
            LOGGER.info("trial %d  %s  %s", number, "goes on" if is_resumed else "starts", spoken(values))

    def ended(self, outcome: Outcome, board: Leaderboard) -> None:
        """Say how a trial ended."""
        if not self._view.is_live or outcome.status == "failed":
            told = "" if outcome.error is None else f"  {shortened(outcome.error)}"
            LOGGER.info(
                "trial %d  %s  %s%s", outcome.trial.number, outcome.status, spoken_metrics(outcome, board), told
            )


def as_table(board: Leaderboard, num_rows: int | None = None) -> Table:
    """The leaderboard as a table for a terminal."""
    table = Table(box=None, pad_edge=False)
    for name in ("rank", "trial", *board.metrics, *board.keys, "epochs", "seconds", "status"):
        table.add_column(name, overflow="fold")
    places = sorted(board.places, key=lambda place: place.outcome.status != "running") if num_rows else board.places
    for place in places[:num_rows]:
        table.add_row(*map(printable, _cells(place, board)), style=_STYLES.get(place.outcome.status))
    if num_rows is not None and len(places) > num_rows:
        table.add_row("", f"… {len(places) - num_rows} more")
    return table


def _cells(place: Place, board: Leaderboard) -> list[str]:
    outcome = place.outcome
    values = [""] * len(board.metrics) if outcome.values is None else [f"{value:.4f}" for value in outcome.values]
    return [
        "" if place.rank is None else str(place.rank),
        str(outcome.trial.number),
        *values,
        *(brief(outcome.trial.values.get(key, "")) for key in board.keys),
        str(outcome.num_epochs),
        f"{outcome.seconds:.1f}",
        outcome.status if outcome.error is None else f"{outcome.status}: {shortened(outcome.error)}",
    ]


def brief(value: str) -> str:
    """A number with six digits, any other value as it is."""
    try:
        return value if len(value) <= _MAX_DIGITS else f"{float(value):.6g}"
    except ValueError:
        return value


def spoken(values: dict[str, str]) -> str:
    """`optimizer.lr=0.1 model=resnet18`."""
    return " ".join(f"{key}={value}" for key, value in values.items())


def spoken_metrics(outcome: Outcome, board: Leaderboard) -> str:
    """`val_top1 = 0.9812 after 5 epochs, 12.3 seconds`."""
    if outcome.values is None:
        return "before its first epoch was over"
    told = ", ".join(f"{name} = {value:.4f}" for name, value in zip(board.metrics, outcome.values, strict=True))
    return f"{told} after {outcome.num_epochs} epochs, {outcome.seconds:.1f} seconds"


def shortened(error: str) -> str:
    """The first line of an error, not longer than a line of a terminal."""
    line = error.splitlines()[0] if error else ""
    return line if len(line) <= _MAX_ERROR else line[: _MAX_ERROR - 1] + "…"
