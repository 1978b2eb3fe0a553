"""Jobs as the commands get them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from runner.config.compose import compose
from runner.config.composing import Job
from runner.config.saved import TypedCommand


def compose_jobs(
    argv: Sequence[str], run_job: Callable[[Job], float | None], typed: TypedCommand | None = None
) -> None:
    """Hand one experiment, or each job of a sweep, to `run_job`."""
    composed = compose(argv, typed)
    if isinstance(composed, Job):
        run_job(composed)
    elif composed is not None:
        composed.carry_out(run_job)
