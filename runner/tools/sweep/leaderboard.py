"""The result of a sweep: leaderboard.csv and .json, and best.yaml, rewritten as a whole after each trial."""

from __future__ import annotations

import json
import shlex
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from rich.table import Table

from runner.base.console import LOGGER, LiveView
from runner.base.errors import ConfigError, OutputError
from runner.base.files import write_atomic, write_json
from runner.base.safe_text import csv_lines
from runner.base.untrusted import UntrustedFileError, printable, read_text
from runner.base.user_paths import refuse_ways_out_at
from runner.config.refusal import PACKAGE_HEADER
from runner.config.saved import chosen_options, default_values, saved_config
from runner.config.schema import Config
from runner.config.schema.sweep import Direction, Metric
from runner.tools.sweep.folder import READ_OF_TRIALS, WRITTEN_FILES, Outcome, SweepFolder, Trial, outcome_of

# Of the machine or of the sweep: an experiment to commit has them from elsewhere.
_NOT_OF_THE_EXPERIMENT = ("output_dir", "sweep", "hydra", "experiment")


_STYLES = {"running": "cyan", "completed": "green", "failed": "red", "pruned": "yellow"}
_MAX_ERROR = 100
_MAX_DIGITS = 8


@dataclass(frozen=True, kw_only=True)
class Place:
    """One trial on the leaderboard."""

    rank: int | None
    """1 for the best; equals share one. None before it is over, and where it failed."""
    outcome: Outcome


@dataclass(frozen=True, kw_only=True)
class Leaderboard:
    """All trials, the best first."""

    metrics: tuple[Metric, ...]
    directions: tuple[Direction, ...]
    places: tuple[Place, ...]

    @property
    def keys(self) -> list[str]:
        """The keys that vary, in the order in which they were given."""
        return list(dict.fromkeys(key for place in self.places for key in place.outcome.trial.values))

    @property
    def best(self) -> Outcome | None:
        """The best trial that was trained to its end."""
        ended = [place.outcome for place in self.places if place.rank and place.outcome.status == "completed"]
        return ended[0] if ended else None


def read_leaderboard(
    folder: SweepFolder, trials: Sequence[Trial], metrics: Sequence[Metric], directions: Sequence[Direction]
) -> Leaderboard:
    """Read how far all trials are, and rank those that are over."""
    outcomes = [outcome_of(trial, folder, metrics, directions) for trial in trials if trial.same_as is None]
    return ranked(outcomes, metrics, directions)


def ranked(outcomes: Sequence[Outcome], metrics: Sequence[Metric], directions: Sequence[Direction]) -> Leaderboard:
    """The leaderboard of these trials, of which those that are over have a rank.

    The rank is 1 + the number of trials that are better in each metric: with one metric the usual one, with several
    the first are those that no other beats (the Pareto front).
    """
    signs = [1 if direction == "maximize" else -1 for direction in directions]
    scores = {
        outcome.trial.number: tuple(sign * value for sign, value in zip(signs, outcome.values, strict=True))
        for outcome in outcomes
        if outcome.is_over and outcome.values is not None
    }
    places = [Place(rank=_rank(outcome.trial.number, scores), outcome=outcome) for outcome in outcomes]
    places.sort(key=lambda place: _order(place, scores))
    return Leaderboard(metrics=tuple(metrics), directions=tuple(directions), places=tuple(places))


def refresh(folder: SweepFolder) -> None:
    """Read how far all trials are and write the leaderboard, as a job does that has trained one of them.

    Raises:
        OutputError: when it is no folder of a sweep, a damaged one, or can't be written.
    """
    _refuse_ways_out(folder)
    record = folder.record()
    with folder.hold_leaderboard():
        write_leaderboard(folder, read_leaderboard(folder, folder.trials(), record["metrics"], record["directions"]))


def _refuse_ways_out(folder: SweepFolder) -> None:
    """Of the folder in which a run lies, which may be thousands, only what is read and written here is looked at.

    Raises:
        CheckpointError: naming what leads out.
    """
    refuse_ways_out_at(folder.path, ("sweep.json", "trials", ".leaderboard.lock", *WRITTEN_FILES))
    numbers = [file.stem for file in (folder.path / "trials").glob("*.json")]
    refuse_ways_out_at(folder.path, (f"trials/{number}.json" for number in numbers))
    refuse_ways_out_at(folder.path, (f"{number}/{name}" for number in numbers for name in READ_OF_TRIALS))


def write_leaderboard(folder: SweepFolder, board: Leaderboard) -> None:
    """Write leaderboard.csv and .json, and best.yaml once there is a best trial."""
    rows = [_row(place, board, folder) for place in board.places]
    write_json(folder.path / "leaderboard.json", rows)
    columns = _columns(board)
    cells = ({**{key: _cell(value) for key, value in row["values"].items()}, **row} for row in rows)
    table = csv_lines([columns, *([row.get(column) for column in columns] for row in cells)])
    write_atomic(folder.path / "leaderboard.csv", table)
    best_file = folder.path / "best.yaml"
    if board.best is not None and not _begins_with(best_file, _head(board.best, board.metrics)):
        write_atomic(best_file, experiment_of(board.best, board.metrics))


def command_of(trial: Trial, flags: Sequence[str] = ()) -> str:
    """The command that trains a trial alone.

    Args:
        trial: which.
        flags: those of Hydra's that the sweep was started with, such as --config-dir.
    """
    return shlex.join(["python", "-m", "runner", *flags, *trial.overrides])


def config_flags(argv: Sequence[str]) -> list[str]:
    """The flags of a command line that say where configs are looked for."""
    flags: list[str] = []
    for at, item in enumerate(argv):
        if item in ("--config-dir", "-cd"):
            flags += argv[at : at + 2]
        elif item.startswith("--config-dir="):
            flags.append(item)
    return flags


def experiment_of(outcome: Outcome, metrics: Sequence[Metric]) -> str:
    """An experiment file that trains a trial again: what was varied, and what else differs from the defaults."""
    try:
        config = saved_config(outcome.trial.config).model_dump(mode="json")
    except ConfigError as error:
        raise OutputError(f"the record of trial {outcome.trial.number} is damaged: its config: {error}") from error
    options = chosen_options(config)
    defaults = {key: value for key, value in default_values(options).items() if key not in _NOT_OF_THE_EXPERIMENT}
    # As the schema reads them, with what it fills in for the entries of lists.
    filled = Config.model_validate_json(json.dumps({**config, **defaults})).model_dump(mode="json")
    kept = _difference({key: config[key] for key in defaults}, filled, outcome.trial.values.keys())
    values = {"defaults": [{f"override /{group}": option} for group, option in options.items()], **kept}
    return _head(outcome, metrics) + yaml.safe_dump(values, sort_keys=False, allow_unicode=True)


def _head(outcome: Outcome, metrics: Sequence[Metric]) -> str:
    reached = ", ".join(f"{name} = {value:.6g}" for name, value in zip(metrics, outcome.values or (), strict=True))
    return f"{PACKAGE_HEADER}\n# Trial {outcome.trial.number} of a sweep, which reached {reached}.\n"


def _begins_with(file: Path, head: str) -> bool:
    try:
        return read_text(file).startswith(head)
    except (OSError, UntrustedFileError):
        return False  # it is written anew


def _difference(
    values: Mapping[str, Any], defaults: Mapping[str, Any], varied: Collection[str], prefix: str = ""
) -> dict[str, Any]:
    changed: dict[str, Any] = {}
    for key, value in values.items():
        full_key = f"{prefix}{key}"
        is_group = not prefix and isinstance(value, Mapping)  # whose option stands in the defaults list
        if full_key in varied and not is_group:
            changed[key] = value
        elif isinstance(value, Mapping) and isinstance(defaults.get(key), Mapping):
            inner = _difference(value, defaults[key], varied, f"{full_key}.")
            if inner:
                changed[key] = inner
        elif key not in defaults or value != defaults[key]:
            changed[key] = value
    return changed


def _rank(number: int, scores: Mapping[int, tuple[float, ...]]) -> int | None:
    own = scores.get(number)
    if own is None:
        return None
    return 1 + sum(_beats(other, own) for other in scores.values())


def _beats(one: tuple[float, ...], other: tuple[float, ...]) -> bool:
    return one != other and all(mine >= theirs for mine, theirs in zip(one, other, strict=True))


def _order(place: Place, scores: Mapping[int, tuple[float, ...]]) -> tuple[Any, ...]:
    number = place.outcome.trial.number
    if place.rank is None:
        return (1, 0, (), number)
    return (0, place.rank, tuple(-score for score in scores[number]), number)


def _columns(board: Leaderboard) -> list[str]:
    return ["rank", *board.metrics, *board.keys, "seconds", "epochs", "status", "folder", "error"]


def _cell(value: str) -> object:
    """A value that was varied: a negative number is one, and no formula."""
    try:
        return float(value) if value.startswith(("-", "+")) else value
    except ValueError:
        return value


def _row(place: Place, board: Leaderboard, folder: SweepFolder) -> dict[str, Any]:
    outcome = place.outcome
    values = outcome.values if outcome.values is not None else (None,) * len(board.metrics)
    return {
        "rank": place.rank,
        **dict(zip(board.metrics, values, strict=True)),
        "values": outcome.trial.values,
        "seconds": round(outcome.seconds, 3),
        "epochs": outcome.num_epochs,
        "status": outcome.status,
        "folder": str(folder.run_dir(outcome.trial).relative_to(folder.path)),
        "error": outcome.error,
    }


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
