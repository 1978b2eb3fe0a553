"""`python -m runner validate [overrides]`: everything that `train` would refuse, without training."""

from __future__ import annotations

from runner.compose import Job, compose_jobs
from runner.console import show
from runner.errors import EXIT_DONE


def run(argv: list[str]) -> int:
    """Check config, data, model and machine.

    Raises:
        RunnerError: what `train` would raise before training.
    """
    # Of a sweep each combination is checked here, in this process, whatever would propose and train it.
    by_hydra = ["hydra/sweeper=basic", "hydra/launcher=basic"] if {"-m", "--multirun"} & set(argv) else []
    compose_jobs([*argv, *by_hydra], "train", _validate_job)
    return EXIT_DONE


def _validate_job(job: Job) -> None:
    from runner.preflight import preflight  # noqa: PLC0415 - a mistake in the config is told before this is imported

    ready = preflight(job.config)
    config, splits = ready.config, ready.splits
    lines = [
        f"valid: {config.model.name} on {config.data.source}, "
        f"{len(splits.train):,} training and {len(splits.val):,} validation images, {len(splits.classes)} classes",
        *(f"note: {note}" for note in splits.notes),
        *(["note: devices and precision are judged on SLURM's nodes"] if ready.plan.mode == "submitted" else []),
    ]
    show("\n".join(lines))
