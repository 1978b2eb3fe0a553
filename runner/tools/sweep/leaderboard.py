"""The leaderboard of a sweep: its ranking, the files leaderboard.csv, leaderboard.json and best.yaml, and its table."""

from __future__ import annotations

import json
import math
import shlex
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from operator import ge
from pathlib import Path
from typing import Any

import yaml
from rich.table import Table

from runner.base.console import LOGGER, LiveView
from runner.base.errors import ConfigError, OutputError
from runner.base.files import write_atomic, write_json
from runner.base.safe_text import csv_lines
from runner.base.untrusted import UntrustedFileError, printable, read_text
from runner.base.user_paths import refuse_outside_links_at
from runner.config.hydra_errors import PACKAGE_HEADER
from runner.config.saved import chosen_options, default_values, saved_config
from runner.config.schema import Config
from runner.config.schema.sweep import Direction, Metric
from runner.tools.sweep.sweep_folder import READ_OF_TRIALS, WRITTEN_FILES, SweepFolder, Trial, TrialOutcome, outcome_of

# Keys of the machine or of the sweep, which best.yaml leaves out.
_NOT_OF_THE_EXPERIMENT = ("output_dir", "sweep", "hydra", "experiment")
_STYLES = {"running": "cyan", "completed": "green", "failed": "red", "pruned": "yellow"}
_MAX_ERROR = 100
_MAX_DIGITS = 8


@dataclass(frozen=True, kw_only=True)
class LeaderboardRow:
    """One trial on the leaderboard."""

    rank: int | None
    """1 for the best; equal trials share a rank. None of a trial that is not over, or failed."""
    outcome: TrialOutcome


@dataclass(frozen=True, kw_only=True)
class Leaderboard:
    """All trials, the best first."""

    metrics: tuple[Metric, ...]
    directions: tuple[Direction, ...]
    rows: tuple[LeaderboardRow, ...]

    @property
    def keys(self) -> list[str]:
        """The keys that vary, in the order in which they were given."""
        return list(dict.fromkeys(key for outcome in self.outcomes for key in outcome.trial.values))

    @property
    def outcomes(self) -> list[TrialOutcome]:
        """All trials, the best first, without their ranks."""
        return [row.outcome for row in self.rows]

    @property
    def best(self) -> TrialOutcome | None:
        """The best trial that was trained to its end."""
        return next((row.outcome for row in self.rows if row.rank and row.outcome.status == "completed"), None)


def read_leaderboard(
    folder: SweepFolder, trials: Sequence[Trial], metrics: Sequence[Metric], directions: Sequence[Direction]
) -> Leaderboard:
    """Read the run folders of all trials, and rank those that are over."""
    outcomes = [outcome_of(trial, folder, metrics, directions) for trial in trials if trial.same_as is None]
    return ranked(outcomes, metrics, directions)


def ranked(outcomes: Sequence[TrialOutcome], metrics: Sequence[Metric], directions: Sequence[Direction]) -> Leaderboard:
    """The leaderboard of these trials; those that are over have a rank.

    The rank is 1 + the number of trials that are at least as good in each metric and better in one. With several
    metrics, rank 1 is the Pareto front.
    """
    signs = [1 if direction == "maximize" else -1 for direction in directions]
    scores = {
        outcome.trial.number: tuple(sign * value for sign, value in zip(signs, outcome.values, strict=True))
        for outcome in outcomes
        if outcome.is_over and outcome.values is not None
    }
    ordered = sorted(outcomes, key=lambda outcome: outcome.trial.number)
    ranks = {
        number: 1 + sum(other != own and all(map(ge, other, own)) for other in scores.values())
        for number, own in scores.items()
    }
    rows = [LeaderboardRow(rank=ranks.get(outcome.trial.number), outcome=outcome) for outcome in ordered]
    # Those without a rank come last; of equal ranks the best first metric comes first.
    rows.sort(key=lambda row: (row.rank or math.inf, [-score for score in scores.get(row.outcome.trial.number, ())]))
    return Leaderboard(metrics=tuple(metrics), directions=tuple(directions), rows=tuple(rows))


def refresh(folder: SweepFolder) -> None:
    """Read all trials and write the leaderboard; for a job that has trained one of them.

    Raises:
        OutputError: it is no folder of a sweep, a damaged one, or can't be written.
        CheckpointError: a link or special file among those that are read or written here leads out of the folder.
    """
    # A sweep may have thousands of runs: only the files that are read and written here are checked.
    refuse_outside_links_at(folder.path, ("sweep.json", "trials", ".leaderboard.lock", *WRITTEN_FILES))
    numbers = [file.stem for file in (folder.path / "trials").glob("*.json")]
    refuse_outside_links_at(folder.path, (f"trials/{number}.json" for number in numbers))
    refuse_outside_links_at(folder.path, (f"{number}/{name}" for number in numbers for name in READ_OF_TRIALS))
    record = folder.record()
    with folder.hold_leaderboard():
        write_leaderboard(folder, read_leaderboard(folder, folder.trials(), record["metrics"], record["directions"]))


def write_leaderboard(folder: SweepFolder, board: Leaderboard) -> None:
    """Write leaderboard.csv and .json, and best.yaml once there is a best trial."""
    rows = [_entry(row, board, folder) for row in board.rows]
    write_json(folder.path / "leaderboard.json", rows)
    columns = ["rank", *board.metrics, *board.keys, "seconds", "epochs", "status", "folder", "error"]
    cells = ({**{key: _cell(value) for key, value in row["values"].items()}, **row} for row in rows)
    table = csv_lines([columns, *([row.get(column) for column in columns] for row in cells)])
    write_atomic(folder.path / "leaderboard.csv", table)
    best_file = folder.path / "best.yaml"
    if board.best is not None and not _begins_with(best_file, _head(board.best, board.metrics)):
        write_atomic(best_file, experiment_of(board.best, board.metrics))


def command_of(trial: Trial, flags: Sequence[str] = ()) -> str:
    """The command that trains a trial alone.

    Args:
        trial: the trial.
        flags: flags of Hydra that the sweep was started with, such as --config-dir.
    """
    return shlex.join(["python", "-m", "runner", *flags, *trial.overrides])


def config_flags(argv: Sequence[str]) -> list[str]:
    """The flags --config-dir and -cd of a command line, with their values."""
    flags: list[str] = []
    for at, item in enumerate(argv):
        if item in ("--config-dir", "-cd"):
            flags += argv[at : at + 2]
        elif item.startswith("--config-dir="):
            flags.append(item)
    return flags


def experiment_of(outcome: TrialOutcome, metrics: Sequence[Metric]) -> str:
    """An experiment file that trains a trial again: the keys that vary, and others that differ from the defaults."""
    try:
        config = saved_config(outcome.trial.config).model_dump(mode="json")
    except ConfigError as error:
        raise OutputError(f"the record of trial {outcome.trial.number} is damaged: its config: {error}") from error
    options = chosen_options(config)
    defaults = {key: value for key, value in default_values(options).items() if key not in _NOT_OF_THE_EXPERIMENT}
    # Through the schema, which fills in defaults of list entries.
    filled = Config.model_validate_json(json.dumps({**config, **defaults})).model_dump(mode="json")
    kept = _difference({key: config[key] for key in defaults}, filled, outcome.trial.values.keys())
    values = {"defaults": [{f"override /{group}": option} for group, option in options.items()], **kept}
    return _head(outcome, metrics) + yaml.safe_dump(values, sort_keys=False, allow_unicode=True)


def _head(outcome: TrialOutcome, metrics: Sequence[Metric]) -> str:
    reached = ", ".join(f"{name} = {value:.6g}" for name, value in zip(metrics, outcome.values or (), strict=True))
    return f"{PACKAGE_HEADER}\n# Trial {outcome.trial.number} of a sweep, which reached {reached}.\n"


def _begins_with(file: Path, head: str) -> bool:
    try:
        return read_text(file).startswith(head)
    except (OSError, UntrustedFileError):
        return False


def _difference(
    values: Mapping[str, Any], defaults: Mapping[str, Any], varied: Collection[str], prefix: str = ""
) -> dict[str, Any]:
    changed: dict[str, Any] = {}
    for key, value in values.items():
        full_key = f"{prefix}{key}"
        is_group = not prefix and isinstance(value, Mapping)  # its option stands in the defaults list
        if full_key in varied and not is_group:
            changed[key] = value
        elif isinstance(value, Mapping) and isinstance(defaults.get(key), Mapping):
            inner = _difference(value, defaults[key], varied, f"{full_key}.")
            if inner:
                changed[key] = inner
        elif key not in defaults or value != defaults[key]:
            changed[key] = value
    return changed


def _cell(value: str) -> object:
    """A value for a spreadsheet: a negative number is a number, not text that could be a formula."""
    try:
        return float(value) if value.startswith(("-", "+")) else value
    except ValueError:
        return value


def _entry(row: LeaderboardRow, board: Leaderboard, folder: SweepFolder) -> dict[str, Any]:
    outcome = row.outcome
    values = outcome.values if outcome.values is not None else (None,) * len(board.metrics)
    return {
        "rank": row.rank,
        **dict(zip(board.metrics, values, strict=True)),
        "values": outcome.trial.values,
        "seconds": round(outcome.seconds, 3),
        "epochs": outcome.num_epochs,
        "status": outcome.status,
        "folder": str(folder.run_dir(outcome.trial).relative_to(folder.path)),
        "error": outcome.error,
    }


class SweepTable:
    """Shows the leaderboard while a sweep runs: live on a terminal, else as lines of the log."""

    def __init__(self, view: LiveView, num_rows: int) -> None:
        """Show nothing yet.

        Args:
            view: where to show it.
            num_rows: most rows of the live table; running trials come first, then the best.
        """
        self._view = view
        self._num_rows = num_rows

    @property
    def is_live(self) -> bool:
        """Whether there is a terminal to show it on."""
        return self._view.is_live

    def show(self, board: Leaderboard) -> None:
        """Show the table on the terminal."""
        self._view.show(leaderboard_table(board, self._num_rows))

    def log_start(self, number: int, values: dict[str, str], *, is_resumed: bool) -> None:
        """Log that a trial starts, unless the table is live."""
        if not self._view.is_live:
            LOGGER.info("trial %d  %s  %s", number, "resumes" if is_resumed else "starts", describe_values(values))

    def log_end(self, outcome: TrialOutcome, board: Leaderboard) -> None:
        """Log how a trial ended, unless the table is live and shows it."""
        if not self._view.is_live or outcome.status == "failed":
            error = "" if outcome.error is None else f"  {short_error(outcome.error)}"
            LOGGER.info(
                "trial %d  %s  %s%s", outcome.trial.number, outcome.status, describe_metrics(outcome, board), error
            )


def leaderboard_table(board: Leaderboard, num_rows: int | None = None) -> Table:
    """The leaderboard as a table for a terminal."""
    table = Table(box=None, pad_edge=False)
    for name in ("rank", "trial", *board.metrics, *board.keys, "epochs", "seconds", "status"):
        table.add_column(name, overflow="fold")
    rows = sorted(board.rows, key=lambda row: row.outcome.status != "running") if num_rows else board.rows
    for row in rows[:num_rows]:
        table.add_row(*map(printable, _cells(row, board)), style=_STYLES.get(row.outcome.status))
    if num_rows is not None and len(rows) > num_rows:
        table.add_row("", f"… {len(rows) - num_rows} more")
    return table


def _cells(row: LeaderboardRow, board: Leaderboard) -> list[str]:
    outcome = row.outcome
    values = [""] * len(board.metrics) if outcome.values is None else [f"{value:.4f}" for value in outcome.values]
    return [
        "" if row.rank is None else str(row.rank),
        str(outcome.trial.number),
        *values,
        *(short_value(outcome.trial.values.get(key, "")) for key in board.keys),
        str(outcome.num_epochs),
        f"{outcome.seconds:.1f}",
        outcome.status if outcome.error is None else f"{outcome.status}: {short_error(outcome.error)}",
    ]


def short_value(value: str) -> str:
    """A number with six digits, any other value as it is."""
    try:
        return value if len(value) <= _MAX_DIGITS else f"{float(value):.6g}"
    except ValueError:
        return value


def describe_values(values: dict[str, str]) -> str:
    """`optimizer.lr=0.1 model=resnet18`."""
    return " ".join(f"{key}={value}" for key, value in values.items())


def describe_metrics(outcome: TrialOutcome, board: Leaderboard) -> str:
    """`val_top1 = 0.9812 after 5 epochs, 12.3 seconds`."""
    if outcome.values is None:
        return "before the end of its first epoch"
    reached = ", ".join(f"{name} = {value:.4f}" for name, value in zip(board.metrics, outcome.values, strict=True))
    return f"{reached} after {outcome.num_epochs} epochs, {outcome.seconds:.1f} seconds"


def short_error(error: str) -> str:
    """The first line of an error, of at most 100 characters."""
    line = error.splitlines()[0] if error else ""
    return line if len(line) <= _MAX_ERROR else line[: _MAX_ERROR - 1] + "…"
