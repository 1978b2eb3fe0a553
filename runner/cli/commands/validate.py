"""`python -m runner validate [overrides]`: everything that `train` would refuse, without training."""

from __future__ import annotations

from runner.base.console import show, show_error
from runner.base.errors import EXIT_DONE, RunnerError
from runner.cli.combinations import combinations
from runner.config.compose import compose_one
from runner.config.composing import Job


def run(argv: list[str]) -> int:
    """Check config, data, model and machine; of a sweep (-m) each combination, in this process.

    Raises:
        RunnerError: what `train` would raise before training; of several combinations the first.
    """
    calls = combinations(argv)
    failures: list[RunnerError] = []
    for arguments in calls:
        try:
            job = compose_one(arguments)
            if job is not None:
                _validate(job)
        except RunnerError as error:
            if len(calls) == 1:
                raise
            show_error(error)
            failures.append(error)
    if failures:
        raise failures[0]
    return EXIT_DONE


def _validate(job: Job) -> None:
    from runner.launch.preflight import preflight  # noqa: PLC0415 - a mistake in the config is told before this is imported

    ready = preflight(job.config)
    config, splits = ready.config, ready.splits
    lines = [
        f"valid: {config.model.name} on {config.data.source}, "
        f"{len(splits.train):,} training and {len(splits.val):,} validation images, {len(splits.classes)} classes",
        *(f"note: {note}" for note in splits.notes),
        *(["note: devices and precision are judged on SLURM's nodes"] if ready.plan.mode == "submitted" else []),
    ]
    show("\n".join(lines))
