"""Carries out a sweep: starts what is missing, goes on with what was cut, and leaves alone what is done."""

from __future__ import annotations

import shlex
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING

from runner.base import console
from runner.base.console import LOGGER
from runner.base.errors import ConfigError, StoppedOnRequest, TrialsFailedError
from runner.base.stop import StopRequest
from runner.config.schema.sweep import SweepConfig
from runner.tools.sweep.composer import Composer
from runner.tools.sweep.folder import Outcome, SweepFolder, Trial, outcome_of
from runner.tools.sweep.leaderboard import (
    Leaderboard,
    SweepTable,
    command_of,
    config_flags,
    ranked,
    shortened,
    write_leaderboard,
)
from runner.tools.sweep.pool import End, Pool

if TYPE_CHECKING:
    from runner.tools.sweep.search.study import Search

_TICK_SECONDS = 0.1
_SECONDS_BETWEEN_TABLES = 1.0
_SECONDS_BETWEEN_LOOKS = 0.5
_NUM_TABLE_ROWS = 20


class Sweep:
    """A sweep at work; whoever makes it holds its folder."""

    def __init__(
        self,
        *,
        config: SweepConfig,
        folder: SweepFolder,
        trials: Sequence[Trial],
        composer: Composer,
        search: Search | None,
        is_open: bool,
        pool: Pool,
        stop: StopRequest,
        queued: Collection[str] = (),
    ) -> None:
        """Plain values.

        Args:
            config: the section `sweep`, with its metric.
            folder: of the sweep.
            trials: those that are known.
            composer: makes trials out of what the search proposes.
            search: the study, where there is a search or a policy.
            is_open: whether the search proposes further trials; a grid has all of them.
            pool: the processes.
            stop: tells that a stop is wanted.
            queued: the jobs that SLURM has of this sweep.
        """
        self.config = config
        self.folder = folder
        self.trials = list(trials)
        self.composer = composer
        self.search = search
        self.is_open = is_open
        self.pool = pool
        self.stop = stop
        self.left_alone: set[int] = set()  # trials that are not started again by this process
        self.queued = queued
        self.over: dict[int, Outcome] = {}  # what is known of trials that are over
        self.is_interrupted = False  # whether somebody has stopped a trial
        self.is_ending = False  # whether failures have ended the sweep
        self.looked_at = -_SECONDS_BETWEEN_LOOKS  # when nothing was found to start
        self.is_waiting = (
            False  # whether a trial is trained by somebody else, such as the dying process of a killed sweep
        )
        self.started_at = time.monotonic()

    def run(self) -> Leaderboard:
        """Carry it out.

        Raises:
            StoppedOnRequest: when it was stopped; the trials have saved themselves.
            TrialsFailedError: when any trial has failed.
        """
        with ExitStack() as stack:
            stack.enter_context(self.pool.killed_in_the_end())
            table = SweepTable(stack.enter_context(console.live_view()), _NUM_TABLE_ROWS)
            self.tell_known()
            shown_at = -_SECONDS_BETWEEN_TABLES
            while self._advance(table):
                if table.is_live and time.monotonic() - shown_at >= _SECONDS_BETWEEN_TABLES:
                    table.show(self.leaderboard())
                    shown_at = time.monotonic()
                time.sleep(_TICK_SECONDS)
        return self.concluded()

    def leaderboard(self) -> Leaderboard:
        """How far all trials are."""
        outcomes = [self._outcome(trial) for trial in self.trials if trial.same_as is None]
        return ranked(outcomes, self.config.metrics, self.config.directions)

    def _written_leaderboard(self) -> Leaderboard:
        with self.folder.hold_leaderboard():
            board = self.leaderboard()
            write_leaderboard(self.folder, board)
        return board

    def _advance(self, table: SweepTable) -> bool:
        """Look after what has ended, start what there is room for; returns whether there is more to do."""
        for end in self.pool.ended():
            self.note(end, table)
        if self.stop.received is not None or self.is_ending:
            self.pool.ask_to_stop()
            return bool(self.pool.running)
        while self.pool.has_room and time.monotonic() - self.looked_at >= _SECONDS_BETWEEN_LOOKS:
            trial = self._next()
            if trial is None:
                self.looked_at = time.monotonic()
            else:
                self._start(trial, table)
        return bool(self.pool.running) or self.is_waiting

    def tell_known(self) -> None:
        """Tell the search of the trials that have ended while nobody could."""
        for trial in self.trials:
            self._tell(trial)

    def next_batch(self, size: int) -> list[Trial]:
        """Up to so many trials that are to be started now; empty at the end."""
        batch: list[Trial] = []
        while len(batch) < size and self.stop.received is None and not self.is_ending:
            trial = self._next()
            if trial is None:
                break
            self._admit(trial)
            batch.append(trial)
        return batch

    def _start(self, trial: Trial, table: SweepTable) -> None:
        self._admit(trial)
        is_resumed = (self.folder.run_dir(trial) / "run.json").is_file()
        table.started(trial.number, trial.values, is_resumed=is_resumed)
        self.pool.start(trial)

    def _admit(self, trial: Trial) -> None:
        """Give a trial its place in the study, and don't take it up twice."""
        self.left_alone.add(trial.number)
        if self.search is not None and trial.study_number is None:
            trial.study_number = self.search.enter(trial.number)
            self.folder.save(trial)

    def _next(self) -> Trial | None:
        """The next trial to start: one that is known and unfinished, else one that the search proposes."""
        self.is_waiting = False
        if self._has_no_time_left():
            return None
        for trial in self.trials:
            if trial.number not in self.left_alone:
                outcome = self._outcome(trial)
                if self._needs_training(outcome):
                    return trial
                self.is_waiting |= outcome.status == "running" and trial.job_id not in self.queued
        while self.is_open and self.search is not None and not self.search.is_exhausted(len(self.trials)):
            proposed = self._propose()
            if proposed is not None:
                return proposed
        return None

    def _needs_training(self, outcome: Outcome) -> bool:
        if outcome.trial.job_id in self.queued:
            return False  # SLURM has it, and puts it back into the queue where it is interrupted
        match outcome.status:
            case "waiting" | "submitted" | "stopped":
                return outcome.trial.same_as is None
            case "failed":
                is_trainable = bool(outcome.trial.config) and outcome.trial.same_as is None
                is_left = len(outcome.trial.failures) <= self.config.max_retries
                return self.config.on_failure == "retry" and is_trainable and is_left
            case _:
                return False

    def _propose(self) -> Trial | None:
        """Record what the search proposes; None where it is refused, or has been proposed before."""
        assert self.search is not None
        number = max((trial.number for trial in self.trials), default=-1) + 1
        study_number, values = self.search.propose(number)
        try:
            trial = self.composer.trial(number, values)
        except ConfigError as error:
            trial = Trial(number=number, identity="", values=values, overrides=[], config={})
            trial.failures.append({"name": error.name, "message": str(error)})
        trial.study_number = study_number
        same = [known.number for known in self.trials if known.identity == trial.identity and known.same_as is None]
        trial.same_as = same[0] if same and trial.identity else None
        self.folder.save(trial)
        self.trials.append(trial)
        if trial.same_as is None and not trial.failures:
            return trial
        self._tell(trial)
        return None

    def note(self, end: End, table: SweepTable) -> None:
        """Record how a process ended, and what follows from it."""
        trial, self.looked_at = end.trial, -_SECONDS_BETWEEN_LOOKS
        trial.job_id = end.job_id
        if end.job_id is not None:
            LOGGER.info("trial %d  submitted job %s to SLURM", trial.number, end.job_id)
        self.is_interrupted |= end.is_stopped
        if end.failure is not None:
            trial.failures.append(end.failure)
        if end.failure is not None or end.job_id is not None:
            self.folder.save(trial)
        outcome = self._outcome(trial)
        self._tell(trial)
        table.ended(outcome, self._written_leaderboard())
        if outcome.status == "failed":
            if self._needs_training(outcome):
                self.left_alone.discard(trial.number)
            else:
                self._heed_failure()

    def _heed_failure(self) -> None:
        failed = sum(self._outcome(trial).status == "failed" for trial in self.trials)
        limit = self.config.max_failures
        if self.config.on_failure == "stop" or (limit is not None and failed > limit):
            LOGGER.warning("the sweep ends here: %d failed trials (sweep.on_failure, sweep.max_failures)", failed)
            self.is_ending = True

    def _tell(self, trial: Trial) -> None:
        """Tell the search how a trial ended, and those that are the same."""
        if self.search is None:
            return
        original = next(known for known in self.trials if known.number in (trial.same_as, trial.number))
        outcome = self._outcome(original)
        is_final = outcome.is_over or (outcome.status == "failed" and not self._needs_training(outcome))
        for same in self.trials:
            if is_final and original.number in (same.number, same.same_as):
                self.search.tell(_as(outcome, same))

    def _outcome(self, trial: Trial) -> Outcome:
        """How far a trial is; of one that is over, whose files do not change any more, as it was read first."""
        outcome = self.over.get(trial.number)
        if outcome is None:
            outcome = outcome_of(trial, self.folder, self.config.metrics, self.config.directions)
            if outcome.is_over:
                self.over[trial.number] = outcome
        return outcome

    def _has_no_time_left(self) -> bool:
        minutes = self.config.timeout_minutes
        return minutes is not None and time.monotonic() - self.started_at >= minutes * 60

    def concluded(self) -> Leaderboard:
        """Say how it ended.

        Raises:
            StoppedOnRequest: when it was stopped.
            TrialsFailedError: when any trial has failed.
        """
        board = self._written_leaderboard()
        for line in _conclusion(board, self.folder):
            LOGGER.info("%s", line)
        go_on = _command_to_go_on(self.folder)
        if self.stop.received is not None or (self.is_interrupted and not self.is_ending):
            how = f"the sweep was stopped on {self.stop.received}" if self.stop.received else "a trial was stopped"
            raise StoppedOnRequest(f"{how}; go on with {go_on}")
        failed = [place.outcome for place in board.places if place.outcome.status == "failed"]
        if failed:
            lines = "".join(f"\n  {outcome.trial.number}: {shortened(outcome.error or '')}" for outcome in failed)
            raise TrialsFailedError(
                f"{len(failed)} of {len(board.places)} trials failed; logs in {self.folder.path}/<trial>/logs. "
                f"To try them again from where they were: {go_on} sweep.on_failure=retry{lines}"
            )
        return board


def _as(outcome: Outcome, same: Trial) -> Outcome:
    return Outcome(**{**vars(outcome), "trial": same})


def _command_to_go_on(folder: SweepFolder) -> str:
    return f"python -m runner resume {shlex.quote(f'run={folder.path}')}"


def _conclusion(board: Leaderboard, folder: SweepFolder) -> Iterator[str]:
    counts: dict[str, int] = {}
    for place in board.places:
        counts[place.outcome.status] = counts.get(place.outcome.status, 0) + 1
    yield f"trials      {', '.join(f'{number} {status}' for status, number in counts.items())}"
    if counts.get("waiting"):
        yield f"go on with  {_command_to_go_on(folder)}"
    if board.best is not None:
        values = zip(board.metrics, board.best.values or (), strict=True)
        told = ", ".join(f"{name} = {value:.4f}" for name, value in values)
        yield f"best        trial {board.best.trial.number}: {told}"
        yield f"repeat it   {command_of(board.best.trial, config_flags(folder.record()['argv']))}"
        yield f"            or commit {folder.path / 'best.yaml'} as conf/experiment/NAME.yaml: experiment=NAME"
    yield f"leaderboard {folder.path / 'leaderboard.csv'}"
    yield f"look at it  tensorboard --logdir {shlex.quote(str(folder.path))}"
