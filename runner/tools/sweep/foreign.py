"""Trials by a launcher that is not ours, such as Hydra's own, joblib's or submitit's: in batches, each waited for."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from hydra.core.utils import JobReturn, JobStatus
from hydra.plugins.launcher import Launcher

from runner.base import console
from runner.base.errors import RunnerError
from runner.tools.sweep.folder import Trial
from runner.tools.sweep.leaderboard import Leaderboard
from runner.tools.sweep.pool import End
from runner.tools.sweep.run import Sweep
from runner.tools.sweep.table import SweepTable


def run_foreign(sweep: Sweep, launcher: Launcher, batch_size: int) -> Leaderboard:
    """Carry out a sweep batch by batch; a stop is heeded between two of them.

    Args:
        sweep: at its beginning.
        launcher: runs a batch of jobs and returns when all have ended.
        batch_size: trials of a batch.

    Raises:
        StoppedOnRequest: when it was stopped.
        TrialsFailedError: when any trial has failed.
    """
    with console.live_view() as view:
        table = SweepTable(view, batch_size)
        sweep.tell_known()
        while batch := sweep.next_batch(batch_size):
            # Hydra numbers the jobs of a batch one after the other, and so names their folders.
            for group in _consecutive(batch):
                overrides = [sweep.composer.overrides_of(trial.values) for trial in group]
                results = launcher.launch(overrides, initial_job_idx=group[0].number)
                for trial, result in zip(group, results, strict=True):
                    sweep.note(_end(trial, result), table)
    return sweep.concluded()


def _consecutive(trials: Sequence[Trial]) -> Iterator[list[Trial]]:
    group: list[Trial] = []
    for trial in sorted(trials, key=lambda trial: trial.number):
        if group and trial.number != group[-1].number + 1:
            yield group
            group = []
        group.append(trial)
    yield group


def _end(trial: Trial, result: JobReturn) -> End:
    error = result._return_value if result.status != JobStatus.COMPLETED else None
    failure = None
    if error is not None:
        name = error.name if isinstance(error, RunnerError) else type(error).__name__
        failure = {"name": name, "message": str(error)}
    return End(trial=trial, is_stopped=False, failure=failure, job_id=None)
