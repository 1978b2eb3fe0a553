"""Runs a sweep: starts new trials, resumes interrupted ones, and skips those that are over."""

from __future__ import annotations

import shlex
import time
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING

from runner.base import console
from runner.base.console import LOGGER
from runner.base.errors import ConfigError, StoppedOnRequest, TrialsFailedError
from runner.base.stop import StopRequest
from runner.config.schema.sweep import SweepConfig
from runner.tools.sweep.composer import Composer
from runner.tools.sweep.leaderboard import (
    Leaderboard,
    SweepTable,
    command_of,
    config_flags,
    ranked,
    short_error,
    write_leaderboard,
)
from runner.tools.sweep.pool import Pool, TrialEnd
from runner.tools.sweep.sweep_folder import SweepFolder, Trial, TrialOutcome, outcome_of

if TYPE_CHECKING:
    from runner.tools.sweep.search.study import Search

_TICK_SECONDS = 0.1
_SECONDS_BETWEEN_TABLES = 1.0
_SECONDS_BETWEEN_LOOKS = 0.5
_NUM_TABLE_ROWS = 20


class Sweep:
    """A running sweep; its caller holds the lock of its folder."""

    def __init__(
        self,
        *,
        config: SweepConfig,
        folder: SweepFolder,
        trials: Sequence[Trial],
        composer: Composer,
        search: Search | None,
        proposes: bool,
        pool: Pool,
        stop: StopRequest,
        queued: Collection[str] = (),
    ) -> None:
        """Read nothing and start nothing yet.

        Args:
            config: the section `sweep`, with its metric.
            folder: of the sweep.
            trials: those that are recorded.
            composer: makes trials out of proposed values.
            search: the Optuna study, where there is a sampler or a pruner.
            proposes: whether the search proposes further trials; a grid has all of them.
            pool: the processes.
            stop: has a signal once one was received.
            queued: this sweep's jobs in SLURM's queue.
        """
        self.config = config
        self.folder = folder
        self.trials = list(trials)
        self.composer = composer
        self.search = search
        self.proposes = proposes
        self.pool = pool
        self.stop = stop
        self.not_to_start: set[int] = set()  # numbers of trials that this process does not start, or has started
        self.queued = queued
        self.over: dict[int, TrialOutcome] = {}  # by number of the trial; their files do not change any more
        self.is_interrupted = False  # a trial was stopped on request
        self.is_ending = False  # too many failures: no further trial is started
        self.looked_at = -_SECONDS_BETWEEN_LOOKS  # when no trial to start was found
        self.is_waiting = False  # another process trains a trial, such as one that a killed sweep has left
        self.started_at = time.monotonic()

    def run(self) -> Leaderboard:
        """Run all trials.

        Raises:
            StoppedOnRequest: a signal asked for it; the trials have saved their state.
            TrialsFailedError: any trial has failed.
        """
        with ExitStack() as stack:
            stack.enter_context(self.pool.kill_on_exit())
            table = SweepTable(stack.enter_context(console.live_view()), _NUM_TABLE_ROWS)
            self.tell_ended()
            shown_at = -_SECONDS_BETWEEN_TABLES
            while self._advance(table):
                if table.is_live and time.monotonic() - shown_at >= _SECONDS_BETWEEN_TABLES:
                    table.show(self.leaderboard())
                    shown_at = time.monotonic()
                time.sleep(_TICK_SECONDS)
        return self.finish()

    def leaderboard(self) -> Leaderboard:
        """All trials as they stand now."""
        outcomes = [self._outcome(trial) for trial in self.trials if trial.same_as is None]
        return ranked(outcomes, self.config.metrics, self.config.directions)

    def _written_leaderboard(self) -> Leaderboard:
        with self.folder.hold_leaderboard():
            board = self.leaderboard()
            write_leaderboard(self.folder, board)
        return board

    def _advance(self, table: SweepTable) -> bool:
        """Record ended trials and start others in the free slots; returns whether there is more to do."""
        for end in self.pool.ended():
            self.record_end(end, table)
        if self.stop.received is not None or self.is_ending:
            self.pool.ask_to_stop()
            return bool(self.pool.running)
        while self.pool.has_free_slot and time.monotonic() - self.looked_at >= _SECONDS_BETWEEN_LOOKS:
            trial = self._next()
            if trial is None:
                self.looked_at = time.monotonic()
            else:
                self._mark_started(trial)
                is_resumed = (self.folder.run_dir(trial) / "run.json").is_file()
                table.log_start(trial.number, trial.values, is_resumed=is_resumed)
                self.pool.start(trial)
        return bool(self.pool.running) or self.is_waiting

    def tell_ended(self) -> None:
        """Tell the search of the trials that ended while no sweep was running."""
        for trial in self.trials:
            self._tell(trial)

    def next_batch(self, size: int) -> list[Trial]:
        """At most `size` trials to start now; none at the end of the sweep."""
        batch: list[Trial] = []
        while len(batch) < size and self.stop.received is None and not self.is_ending:
            trial = self._next()
            if trial is None:
                break
            self._mark_started(trial)
            batch.append(trial)
        return batch

    def _mark_started(self, trial: Trial) -> None:
        """Mark a trial as started and add it to the study."""
        self.not_to_start.add(trial.number)
        if self.search is not None and trial.study_number is None:
            trial.study_number = self.search.enter(trial.number)
            self.folder.save(trial)

    def _next(self) -> Trial | None:
        """The next trial to start: one that is recorded and unfinished, else one that the search proposes."""
        self.is_waiting = False
        minutes = self.config.timeout_minutes
        if minutes is not None and time.monotonic() - self.started_at >= minutes * 60:
            return None
        for trial in self.trials:
            if trial.number not in self.not_to_start:
                outcome = self._outcome(trial)
                if self._needs_training(outcome):
                    return trial
                self.is_waiting |= outcome.status == "running" and trial.job_id not in self.queued
        while self.proposes and self.search is not None and not self.search.is_exhausted(len(self.trials)):
            proposed = self._propose()
            if proposed is not None:
                return proposed
        return None

    def _needs_training(self, outcome: TrialOutcome) -> bool:
        if outcome.trial.job_id in self.queued:
            return False  # SLURM requeues an interrupted job by itself
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
        """Record the next proposal; None where its config is invalid, or the same as that of another trial."""
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

    def record_end(self, end: TrialEnd, table: SweepTable) -> None:
        """Record how a trial's process ended, and apply sweep.on_failure and sweep.max_failures."""
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
        table.log_end(outcome, self._written_leaderboard())
        if outcome.status == "failed":
            if self._needs_training(outcome):
                self.not_to_start.discard(trial.number)
                return
            failed = sum(self._outcome(known).status == "failed" for known in self.trials)
            limit = self.config.max_failures
            if self.config.on_failure == "stop" or (limit is not None and failed > limit):
                LOGGER.warning("the sweep ends here: %d failed trials (sweep.on_failure, sweep.max_failures)", failed)
                self.is_ending = True

    def _tell(self, trial: Trial) -> None:
        """Tell the search how a trial ended, and with it all trials of the same config."""
        if self.search is None:
            return
        original = next(known for known in self.trials if known.number in (trial.same_as, trial.number))
        outcome = self._outcome(original)
        is_final = outcome.is_over or (outcome.status == "failed" and not self._needs_training(outcome))
        for same in self.trials:
            if is_final and original.number in (same.number, same.same_as):
                self.search.tell(replace(outcome, trial=same))

    def _outcome(self, trial: Trial) -> TrialOutcome:
        outcome = self.over.get(trial.number)
        if outcome is None:
            outcome = outcome_of(trial, self.folder, self.config.metrics, self.config.directions)
            if outcome.is_over:
                self.over[trial.number] = outcome
        return outcome

    def finish(self) -> Leaderboard:
        """Write the leaderboard and log a summary.

        Raises:
            StoppedOnRequest: a signal asked for it.
            TrialsFailedError: any trial has failed.
        """
        board = self._written_leaderboard()
        for line in _conclusion(board, self.folder):
            LOGGER.info("%s", line)
        resume = _resume_command(self.folder)
        if self.stop.received is not None or (self.is_interrupted and not self.is_ending):
            how = f"the sweep was stopped on {self.stop.received}" if self.stop.received else "a trial was stopped"
            raise StoppedOnRequest(f"{how}; resume it with {resume}")
        failed = [outcome for outcome in board.outcomes if outcome.status == "failed"]
        if failed:
            lines = "".join(f"\n  {outcome.trial.number}: {short_error(outcome.error or '')}" for outcome in failed)
            raise TrialsFailedError(
                f"{len(failed)} of {len(board.rows)} trials failed; logs in {self.folder.path}/<trial>/logs. "
                f"To resume the failed trials: {resume} sweep.on_failure=retry{lines}"
            )
        return board


def _resume_command(folder: SweepFolder) -> str:
    return f"python -m runner resume {shlex.quote(f'run={folder.path}')}"


def _conclusion(board: Leaderboard, folder: SweepFolder) -> Iterator[str]:
    counts = Counter(outcome.status for outcome in board.outcomes)
    yield f"trials      {', '.join(f'{number} {status}' for status, number in counts.items())}"
    if counts["waiting"]:
        yield f"resume with {_resume_command(folder)}"
    if board.best is not None:
        values = zip(board.metrics, board.best.values or (), strict=True)
        reached = ", ".join(f"{name} = {value:.4f}" for name, value in values)
        yield f"best        trial {board.best.trial.number}: {reached}"
        yield f"repeat it   {command_of(board.best.trial, config_flags(folder.record()['argv']))}"
        yield f"            or commit {folder.path / 'best.yaml'} as conf/experiment/NAME.yaml: experiment=NAME"
    yield f"leaderboard {folder.path / 'leaderboard.csv'}"
    yield f"curves      tensorboard --logdir {shlex.quote(str(folder.path))}"
