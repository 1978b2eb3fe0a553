"""The process that follows a run folder for trackers: `python -m runner.run.tracking.follower`, settings on stdin."""

from __future__ import annotations

import json
import os
import select
import signal
import sys
import time
from pathlib import Path
from typing import IO, Protocol

from runner.base.errors import RunnerError, TrackerError
from runner.base.files import locked, write_atomic
from runner.base.process import exit_without_cleanup
from runner.base.safe_text import MASK, csv_lines, mask_credentials, without_secrets
from runner.base.untrusted import printable
from runner.config.schema.tracker import TrackerConfig
from runner.run.run_folder import is_alive
from runner.run.tracking.beside import TRAINING_HAS_ENDED
from runner.run.tracking.history import FolderFacts, RunHistory
from runner.run.tracking.mlflow_run import MlflowRun
from runner.run.tracking.wandb_run import WandbRun

_POLL_SECONDS = 2.0
_MOST_SECONDS_BETWEEN_TRIES = 60.0
_LOCK_WAIT_SECONDS = 60.0
_MOST_CHARACTERS = 300
_SECRETS = ("MLFLOW_TRACKING_TOKEN", "MLFLOW_TRACKING_PASSWORD", "WANDB_API_KEY")


class Tracker(Protocol):
    """Who is told of a run."""

    def send(self, facts: FolderFacts) -> None:
        """Send what the tracker lacks; raises whatever its client raises."""


class CsvFile:
    """metrics.csv in the run folder: metrics.jsonl as a table."""

    def __init__(self, run_dir: Path) -> None:
        self._file = run_dir / "metrics.csv"
        self._num_written = -1

    def send(self, facts: FolderFacts) -> None:
        """Write the file anew if there are other rows."""
        if len(facts.rows) == self._num_written and self._file.exists():
            return
        columns = list(dict.fromkeys(key for row in facts.rows for key in row))
        write_atomic(self._file, csv_lines([columns, *([row.get(key) for key in columns] for row in facts.rows)]))
        self._num_written = len(facts.rows)


class Follower:
    """Brings the trackers of one run up to date; one that fails is tried again after a while."""

    def __init__(self, run_dir: Path, config: TrackerConfig, uri: str | None) -> None:
        self._history = RunHistory(run_dir)
        self._trackers: dict[str, Tracker | None] = dict.fromkeys(config.names)
        self._run_dir, self._config, self._uri = run_dir, config, uri
        self._next_try: dict[str, float] = {}
        self._pause: dict[str, float] = {}
        self.problems: dict[str, str] = {}
        """What each tracker that lacks something has answered."""

    def step(self, *, is_alive: bool) -> bool:
        """Send once what is new.

        Args:
            is_alive: whether a process trains the run.

        Returns:
            Whether the run has ended and every tracker has all of it.
        """
        try:
            facts = self._history.read(is_alive=is_alive)
        except RunnerError as error:  # damaged by somebody: the trackers keep what they have
            self.problems = dict.fromkeys(self._trackers, self._described(error))
            return False
        if facts is None:
            return False
        for name in self._trackers:
            if time.monotonic() >= self._next_try.get(name, 0.0):
                self._send(name, facts)
        return facts.status != "running" and not self.problems

    def _send(self, name: str, facts: FolderFacts) -> None:
        try:
            tracker = self._trackers[name] or self._open(name)
            self._trackers[name] = tracker
            tracker.send(facts)
        except Exception as error:  # whatever a client raises: the training does not depend on it
            self.problems[name] = self._described(error)
            pause = min(2 * self._pause.get(name, _POLL_SECONDS / 2), _MOST_SECONDS_BETWEEN_TRIES)
            self._pause[name], self._next_try[name] = pause, time.monotonic() + pause
        else:
            self.problems.pop(name, None)
            self._pause.pop(name, None)

    def _open(self, name: str) -> Tracker:
        config = self._config
        match name:
            case "mlflow":
                assert self._uri is not None, "checked before the start"
                return MlflowRun(self._run_dir, uri=self._uri, project=config.project, artifacts=config.artifacts)
            case "wandb":
                return WandbRun(self._run_dir, project=config.project, artifacts=config.artifacts)
            case _:
                return CsvFile(self._run_dir)

    def _described(self, error: Exception) -> str:
        """An error of a tracker's client in one line, without credentials."""
        text = f"{type(error).__name__}: {error}".splitlines()[0]
        if self._uri is not None:  # out of the environment it may hold anything
            text = text.replace(self._uri, without_secrets(self._uri))
        for secret in filter(None, map(os.environ.get, _SECRETS)):
            text = text.replace(secret, MASK)
        return printable(mask_credentials(text))[:_MOST_CHARACTERS]

    def hurry(self) -> None:
        """Try again soon: the training has ended."""
        self._next_try.clear()
        self._pause.clear()


def sync_run(run_dir: Path, config: TrackerConfig, uri: str | None) -> bool:
    """Send what the trackers of a run lack.

    Args:
        run_dir: a run folder.
        config: which trackers, and what they get.
        uri: address of MLflow's server.

    Returns:
        Whether the run has ended; what a live run writes later is sent by its own follower, or another call.

    Raises:
        TrackerError: a tracker could not be told, or another process is telling it.
    """
    follower = Follower(run_dir, config, uri)
    try:
        with locked(run_dir / "logs" / "tracking.lock"):
            has_ended = follower.step(is_alive=is_alive(run_dir))
    except BlockingIOError as error:
        raise TrackerError(f"{run_dir}: another process sends this run to its trackers; it is not disturbed") from error
    if follower.problems:
        raise TrackerError(f"{run_dir}: {problems_of(follower)}; what is missing can be sent later by runs sync")
    return has_ended


def problems_of(follower: Follower) -> str:
    """The trackers that lack something, each with what it has answered."""
    return "; ".join(f"{name} has not everything: {problem}" for name, problem in follower.problems.items())


def follow_run(run_dir: Path, config: TrackerConfig, uri: str | None, stdin: IO[bytes], warnings: IO[str]) -> bool:
    """Follow a run until its training has ended and all is sent, or until the training's process is gone.

    Args:
        run_dir: the run folder.
        config: which trackers, and what they get.
        uri: address of MLflow's server.
        stdin: holds TRAINING_HAS_ENDED at the end of the training, and nothing after a kill.
        warnings: gets one line for each tracker that fails.

    Returns:
        Whether all is sent.
    """
    follower, parent = Follower(run_dir, config, uri), os.getppid()
    reported: set[str] = set()
    has_ended = False
    while True:
        is_complete = follower.step(is_alive=not has_ended)
        for name in sorted(follower.problems.keys() - reported):
            warnings.write(f"{name} can't be told of this run and is tried again: {follower.problems[name]}\n")
            warnings.flush()
            reported.add(name)
        if has_ended and is_complete:
            return True
        readable, _, _ = select.select([] if has_ended else [stdin], [], [], _POLL_SECONDS if not has_ended else 0.5)
        if readable:
            if stdin.readline() != TRAINING_HAS_ENDED:
                return False  # killed: a resumed run goes on telling
            has_ended = True
            follower.hurry()
        if os.getppid() != parent:
            return False


def main() -> int:
    """Follow the run that the first line of stdin names, with the tracker's config; warnings go to stdout.

    Returns:
        0 where the trackers have all of the run, 1 where something is missing.
    """
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1):  # the end of the training ends this process
        signal.signal(number, signal.SIG_IGN)
    os.nice(10)
    warnings = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # what clients print is for the log
    values = json.loads(sys.stdin.buffer.readline())
    run_dir, uri = Path(values["run_dir"]), values["uri"]
    config = TrackerConfig.model_validate_json(json.dumps(values["config"]))
    with locked(run_dir / "logs" / "tracking.lock", wait_seconds=_LOCK_WAIT_SECONDS):
        has_all = follow_run(run_dir, config, uri, sys.stdin.buffer, warnings)
    return 0 if has_all else 1


if __name__ == "__main__":
    exit_without_cleanup(main())
